// A text of many kinds, for measurements without one of the user's own.
#pragma once

#include <string_view>

namespace loramux {

inline constexpr std::string_view kSampleText =
    R"(The harbour town wakes before the sun does. At four in the morning the first boats come back, low in the water, and the men who sort the catch stand under yellow lamps with their sleeves rolled up. Nobody speaks much. A forklift backs out of the cold store, its warning tone loud in the fog, and behind it a woman with a clipboard counts crates: eleven of herring, six of cod, two of something that she has to ask about.

Rainfall is measured in millimetres. One millimetre of rain on one square metre is one litre of water, so a roof of eighty square metres collects eight hundred litres in a storm that brings ten. Most of it runs into the drain. A barrel at the corner of the house keeps two hundred, which is enough for a vegetable garden through a dry week in June.

"You could have called," said Martha. She did not look up from the letter.
"I did call. Twice. The line was dead."
"Then you could have come."
"I am here now," he said, and put his hat on the table, where it dripped.

To make a plain loaf, mix 500 g of flour with 10 g of salt and 7 g of dry yeast. Add 320 ml of lukewarm water, stir until no dry flour is left, and knead for ten minutes. Cover the bowl and let the dough rise for an hour, or until it has doubled. Shape it, put it in a tin, wait another forty minutes, and bake it at 220 degrees for half an hour. It is done when it sounds hollow.

def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2

Dear Sir or Madam, I am writing about invoice 20481 of 3 March. We were charged for twelve units, but the delivery note, of which I enclose a copy, shows only ten. Please send a corrected invoice, or the two missing units, before the end of the month. Yours faithfully, J. Okafor.

Photosynthesis turns light into chemical energy. In the leaves of a plant, chlorophyll absorbs mostly red and blue light and reflects green, which is why leaves look green to us. The energy splits water into oxygen and hydrogen; the oxygen leaves the plant, and the hydrogen helps to build sugar from carbon dioxide. A large beech makes enough oxygen in a summer for several people.

The council met on Tuesday to discuss the bridge. Built in 1931 and repaired in 1968 and 1994, it now carries four times the traffic for which it was designed. Engineers gave three choices: a limit of seven and a half tonnes, a repair that would close it for fourteen months, or a new bridge two hundred metres upstream. The vote was postponed, as it had been in the autumn.

Question: A train leaves at 9:40 and travels 135 kilometres at an average of 90 kilometres an hour. When does it arrive? Answer: The journey takes 135 / 90 = 1.5 hours, so it arrives at 11:10.

In the old stories the fox is always clever, and the bear is always slow. But anyone who has watched a bear take a salmon from a river knows that slowness is a matter of choice. The bear stands in the current as if it had fallen asleep there. The water parts around its legs. Then, faster than the eye follows, there is a fish where there was none.
)";

}  // namespace loramux
