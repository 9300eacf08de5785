#!/usr/bin/env python3
"""names.py finds names that do not exist, and only those. Standard library only."""
import pathlib
import tempfile
import unittest

import names

HASH = "\x23"   # so that names.py sees no comment below

CODE = """// The pool of pages.
namespace loramux {

enum class Tier { kDevice, kHost };

struct [[nodiscard]] Base {
  std::int64_t first, second = 0;
};

class Pool final : public Base {
 public:
  // Some comment
  bool Take(int pages) const { return other_.Given(pages); }
  void (*open)();

 private:
  Other other_;
};

using Store = Pool;

}  // namespace loramux
"""


def found(files, foreign=None):
    """The findings in a folder with these files, and the code above."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {"src/memory/pool.h": CODE, "src/memory/pool_test.cc": "", **files}.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return list(names.findings(pathlib.Path(folder), foreign or {}))


class Names(unittest.TestCase):
    def test_files_by_the_end_of_their_path(self):
        self.assertEqual(found({"docs/x.md": "`pool.h`, `memory/pool.h`, src/memory/pool_test.cc, `src/ROOM/NAME_test.cc`, "
                                             "`pool.{h,h}`, `x_test.cc`, *_fuzz.cc, build/made.h, <vector.h>"}), [])
        for name in ("pol.h", "cache/pool.h", "src/ROOM/NAME_fuzz.cc", "pool.cc"):
            self.assertEqual(found({"docs/x.md": f"one\nsee `{name}`."}), [f"docs/x.md:2: {name}: no such file"])
        self.assertEqual(found({"docs/x.md": "`pool.{h,cc}`"}), ["docs/x.md:1: pool.cc: no such file"])

    def test_members_that_a_type_declares_or_inherits(self):
        self.assertEqual(found({"src/a.cc": "// Pool::Take, Pool::open, Pool::first, loramux::Base::second, Tier::kHost, "
                                            "Store::Take, std::Foo::bar\n"}), [])
        for name in ("Pool::Give", "Pool::Other", "Pool::Given", "Base::Take", "Tier::kDisk", "Store::Give"):
            self.assertEqual(found({"src/a.cc": f"int a;  // as {name}\n"}), [f"src/a.cc:1: {name}: no such member"])
        self.assertEqual(found({"src/a.cc": "// Pol::Take\n"}), ["src/a.cc:1: Pol::Take: no such type"])
        of_a_program = {"bench/b.cc": "struct Load {\n  int size;\n};\n// Load::size\n"}
        self.assertEqual(found(of_a_program), [])
        self.assertEqual(found({**of_a_program, "src/a.cc": "// Load::size\n"}), ["src/a.cc:1: Load::size: no such type"])

    def test_names_in_backquotes(self):
        self.assertEqual(found({"src/a.cc": "// `pages`, `other_`, `Take`, `a + b`\n", "docs/x.md": "`lost`"}), [])
        self.assertEqual(found({"src/a.cc": "int a;  // `lost`\n"}), ["src/a.cc:1: `lost`: the code has no such name"])

    def test_only_comments_and_prose(self):
        self.assertEqual(found({"src/a.cc": 'auto a = Pol::Take("see // lost.h");\n', "docs/x.md": "```\n// lost.h\n```\n",
                                "tests/x.py": 'a = "lost.h"\n', "CHANGELOG.md": "`lost.h` is gone"}), [])
        self.assertEqual(len(found({"src/a.cc": 'auto a = "//";  // lost.h\n',
                                    "tests/x.py": f'"""As lost.h."""\na = 1  {HASH} lost.cc\n',
                                    "src/a.rs": "// lost.h\n"})), 4)

    def test_files_of_other_projects_are_named(self):
        self.assertEqual(found({"docs/x.md": "`theirs.py`, `theirs.py`"}, {"theirs.py": "Them"}), [])
        self.assertEqual(found({}, {"theirs.py": "Them"}),
                         ["tests/names.py: FOREIGN_FILES: nothing names theirs.py, so remove it"])


if __name__ == "__main__":
    unittest.main()
