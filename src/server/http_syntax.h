// The character classes and small grammars of HTTP (RFC 9110 section 5.6, RFC 9112). Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace warpweave::server {

// A letter, a digit or one of !#$%&'*+-.^_`|~: what names are made of.
bool is_token_char(char c);
bool is_token(std::string_view text);

// What a field's value may hold: visible, space, tab, or a byte above 127.
bool is_value_char(char c);

// Without spaces and tabs at its ends.
std::string_view trim(std::string_view text);

std::string to_lower(std::string_view text);
bool equal_ignoring_case(std::string_view a, std::string_view b);

// A Host field's value: name or address, and an optional port; may be empty.
bool is_host(std::string_view text);
// "[::1]:80" -> "[::1]", "a:80" -> "a"
std::string_view host_without_port(std::string_view host);

// *( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )
bool is_chunk_extension(std::string_view text);

// Calls `take(element)` for each non-empty element of a comma-separated list.
template <typename F>
void for_each_element(std::string_view list, F take) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view element = trim(list.substr(0, comma));
    if (!element.empty()) take(element);
    list = comma == std::string_view::npos ? std::string_view{} : list.substr(comma + 1);
  }
}

}  // namespace warpweave::server
