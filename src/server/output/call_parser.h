// What the families of tool calls share: content until a marker opens calls, calls until they end or break, and then
// content again. A family brings its markers and a CallBody for what follows each of them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "server/output/output_parser.h"
#include "server/output/tool_set.h"

namespace loramux {

// Where a CallBody writes its calls. Remembers the text of the open call, so that a call that breaks is not lost.
class CallWriter {
 public:
  // Starts a call. REQUIRES: none is open.
  void Start(std::string_view function);
  // Adds to the arguments. The last `held` bytes that were read are not part of them.
  void Arguments(std::string_view piece, std::size_t held = 0);
  // Ends the open call.
  void End();
  // True between Start and End.
  bool open() const { return open_; }
  // Calls that have ended.
  std::int32_t ended() const { return ended_; }

  // For the parser: events go to `events` from now on.
  void Bind(OutputEvents& events) { events_ = &events; }
  // Notes text that the body reads next.
  void Read(std::string_view text) { text_ += text; }
  // Gives all text since the last call back: as content, or as a broken call. Returns the last `unread` bytes of it,
  // which are to be read again.
  std::string Break(std::size_t unread);
  // Forgets the text: all of it was understood.
  void Accept() { text_.clear(); }

 private:
  OutputEvents* events_ = nullptr;
  std::string text_;      // since the last call
  std::size_t sent_ = 0;  // bytes of text_ that the open call covers
  bool open_ = false;
  std::int32_t started_ = 0;
  std::int32_t ended_ = 0;
};

// Reads what follows a marker, byte by byte.
class CallBody {
 public:
  enum class State {
    kMore,    // the calls go on
    kDone,    // this byte was the last one
    kBroken,  // this is no call; the last unread() bytes may belong to something else
  };
  virtual ~CallBody() = default;
  virtual State Step(char c, CallWriter& calls) = 0;
  // The text has ended; `cut`: by a limit. True: the open call is complete with it.
  virtual bool Finish(CallWriter&, [[maybe_unused]] bool cut) { return false; }
  // At most kMaxMarkerBytes.
  virtual std::size_t unread() const { return 1; }
  // Behind kDone: what was read beyond the calls.
  virtual std::string_view ahead() const { return {}; }
};

inline constexpr std::size_t kMaxMarkerBytes = 32;
inline constexpr std::size_t kMaxFunctionNameBytes = 256;

// Returns the body of the calls that a marker opens.
using OpenBody = std::unique_ptr<CallBody> (*)(const std::shared_ptr<const ToolSet>& tools);

// A text that has a meaning beside content.
struct CallMarker {
  std::string_view text;    // 1 to kMaxMarkerBytes bytes; no marker begins another one
  OpenBody open = nullptr;  // null: it closes a call and is dropped there; elsewhere it is content
};

// How a family of models writes calls.
struct CallGrammar {
  std::span<const CallMarker> markers;
  // If not null: at the start of the answer, and behind a call, `bare_first` opens calls without a marker.
  OpenBody bare = nullptr;
  char bare_first = '{';
  std::string_view separators;  // what may stand between such calls, beside white space
};

// Reads the text by a grammar. White space beside calls is dropped.
class CallParser final : public OutputParser {
 public:
  // `grammar` must outlive the parser.
  CallParser(const CallGrammar& grammar, std::shared_ptr<const ToolSet> tools)
      : grammar_(&grammar), tools_(std::move(tools)) {}

  void Push(std::string_view text, OutputEvents& events) override;
  void Finish(OutputEvents& events, bool cut) override;

 private:
  void Step(char c);
  void StepBody(char c);
  void StepText(char c);
  bool IsGap(char c) const;
  void ScanHeld();
  void Meet(const CallMarker& marker);
  void Open(OpenBody open);
  void Content(std::string_view text);

  const CallGrammar* grammar_;
  std::shared_ptr<const ToolSet> tools_;
  OutputEvents* events_ = nullptr;
  CallWriter calls_;
  std::unique_ptr<CallBody> body_;  // null: content
  std::string held_;                // may become a marker
  std::string gap_;                 // white space whose fate is open
  bool fresh_ = true;               // nothing but a gap since the start or the last call
};

}  // namespace loramux
