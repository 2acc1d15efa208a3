// Records of input files as values: objects of JSON.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string_view>

#include "engine/data/jinja/value.h"
#include "engine/data/text_inputs.h"

namespace engine::data {

using RecordVisitor = std::function<absl::Status(const jinja::Value& record)>;

// Each line of JSON as a value, an object or not. Lines of white space are skipped. A failure, also of the visitor, is located:
// "file:line: error: …", or with the column where the line is no JSON.
absl::Status VisitJsonRecords(const TextPlace& place, std::string_view contents, const RecordVisitor& visit);

// The message of a status that may be located itself, as a part of one that is.
std::string InnerMessage(const absl::Status& status);

}  // namespace engine::data
