// Answers JSON lines about one tokenizer, for tools/make_tokenizer_goldens.py compare:
// {"text": ..} -> ids (with special tokens); {"ids": [..], "skip_special_tokens": ..} -> text.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

using warpweave::IncrementalDetokenizer;
using warpweave::Tokenizer;

nlohmann::json answer(const Tokenizer& tokenizer, const nlohmann::json& request) {
  if (request.contains("text")) {
    auto ids = tokenizer.encode(request["text"].get<std::string>(), true);
    return ids.ok() ? nlohmann::json(*ids) : nlohmann::json(ids.status().message());
  }
  const auto ids = request["ids"].get<std::vector<int32_t>>();
  const bool skip = request["skip_special_tokens"].get<bool>();
  const std::string text = tokenizer.decode(ids, skip);
  IncrementalDetokenizer detokenizer(tokenizer, skip);
  std::string streamed;
  for (int32_t id : ids) streamed += detokenizer.push(id);
  streamed += detokenizer.flush();
  if (streamed != text) return "streamed: " + streamed;
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argc > 1 ? argv[1] : "", std::ios::binary);
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  auto tokenizer = warpweave::load_hf_tokenizer(json, "");
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s: %s\n", argc > 1 ? argv[1] : "usage: tokenizer_probe tokenizer.json",
                 tokenizer.status().message().c_str());
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(**tokenizer, nlohmann::json::parse(line)).dump(-1, ' ', true) << '\n';
  }
  return 0;
}
