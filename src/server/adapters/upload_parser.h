// Reads the files of an upload from its bytes as they arrive, which may be anything: a tar archive, or the parts of a
// form (multipart/form-data).
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"

namespace loramux {

// Takes the files of one upload, one after the other.
class UploadedFiles {
 public:
  virtual ~UploadedFiles() = default;
  // Begins a file. REQUIRES: the name is that of one entry of a folder. Error: there is one of this name already.
  virtual Status Begin(std::string_view name) = 0;
  // Adds to the file that was begun last.
  virtual Status Append(std::string_view bytes) = 0;
};

// Not thread-safe. Errors say what was expected and found; after one, no further call is permitted.
class UploadParser {
 public:
  virtual ~UploadParser() = default;
  // Reads the next bytes, in pieces of any size.
  virtual Status Feed(std::string_view bytes) = 0;
  // Error: the upload is not complete.
  virtual Status Finish() = 0;

  // Returns the parser for a body of this Content-Type; an empty one stands for a tar archive. The files go to `files`,
  // which must outlive the parser. Error (kUnsupported): another type.
  static Result<std::unique_ptr<UploadParser>> For(std::string_view content_type, UploadedFiles& files);
};

}  // namespace loramux
