// Status and Result<T>: how every module reports failure. No exception crosses a module border.
//
// A Status is ok, or a code with a message for people. `field` names the request field, flag or
// file that caused it, empty when there is none. Both types are values; moving is cheap.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace warpweave {

enum class StatusCode {
  ok,
  invalid_argument,    // the caller's input breaks a rule: HTTP 400
  not_found,           // an unknown model, file or id: HTTP 404
  unsupported,         // known, but not available here: HTTP 400; says what to use instead
  resource_exhausted,  // a queue, pool or limit is full: HTTP 429/503
  data_loss,           // a file lies about itself or is truncated
  unavailable,         // starting up or shutting down: HTTP 503
  cancelled,           // aborted by the client
  internal,            // a bug of ours: HTTP 500
};

std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, std::string field = {})
      : code_(code), message_(std::move(message)), field_(std::move(field)) {}

  static Status invalid_argument(std::string message, std::string field = {}) {
    return {StatusCode::invalid_argument, std::move(message), std::move(field)};
  }
  static Status not_found(std::string message, std::string field = {}) {
    return {StatusCode::not_found, std::move(message), std::move(field)};
  }
  static Status unsupported(std::string message, std::string field = {}) {
    return {StatusCode::unsupported, std::move(message), std::move(field)};
  }
  static Status resource_exhausted(std::string message) {
    return {StatusCode::resource_exhausted, std::move(message)};
  }
  static Status data_loss(std::string message, std::string field = {}) {
    return {StatusCode::data_loss, std::move(message), std::move(field)};
  }
  static Status unavailable(std::string message) {
    return {StatusCode::unavailable, std::move(message)};
  }
  static Status internal(std::string message) { return {StatusCode::internal, std::move(message)}; }

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& field() const { return field_; }

  // The same failure with `context` put before its message: "model.safetensors: header is cut".
  Status with_context(std::string_view context) const {
    return {code_, std::string(context) + ": " + message_, field_};
  }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
  std::string field_;
};

// A value or the Status that explains its absence. Reading the value of a failure is a programmer
// error (assert).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                  // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {           // NOLINT: implicit on purpose
    assert(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { assert(ok()); return *value_; }
  const T& value() const& { assert(ok()); return *value_; }
  T&& value() && { assert(ok()); return *std::move(value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define WW_CONCAT_INNER(a, b) a##b
#define WW_CONCAT(a, b) WW_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expr` (a Status) failed.
#define WW_RETURN_IF_ERROR(expr)                         \
  do {                                                   \
    if (::warpweave::Status ww_status_ = (expr); !ww_status_.ok()) return ww_status_; \
  } while (0)

// `WW_ASSIGN_OR_RETURN(auto x, f());` declares x from a Result or returns its Status.
#define WW_ASSIGN_OR_RETURN(decl, expr)                                     \
  auto WW_CONCAT(ww_result_, __LINE__) = (expr);                            \
  if (!WW_CONCAT(ww_result_, __LINE__).ok())                                \
    return WW_CONCAT(ww_result_, __LINE__).status();                        \
  decl = std::move(WW_CONCAT(ww_result_, __LINE__)).value()

}  // namespace warpweave
