#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "grammar/json_text.h"

namespace warpweave::grammar {
namespace {

constexpr int kMaxExponent = 400;   // of a bound; doubles end below
constexpr int64_t kMaxDivisor = 100'000;
constexpr int64_t kMaxCountedDivisor = 1000;  // above it digits are not counted: that many states for each count
constexpr int kMostDigits = 20;     // before the point, and behind it, where no bound has more: all of 64 bits
constexpr int kMostExponentDigits = 3;

Decimal negated(Decimal d) {
  d.negative = !d.negative && !d.is_zero();
  return d;
}

int compare_size(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);
}

// The divisor as a whole number of 10^-places.
struct Divisor {
  int64_t value = 1;
  int places = 0;
};

// Digits of one sign between two sizes, as states that know what has been read.
class DigitAutomaton {
 public:
  struct Sizes {
    Decimal low = {};
    std::optional<Decimal> high = std::nullopt;
    bool low_exclusive = false, high_exclusive = false;
    bool integer = false;
    Divisor divisor;
  };
  DigitAutomaton(GrammarBuilder* builder, Sizes sizes, StateId end)
      : builder_(*builder), sizes_(std::move(sizes)), end_(end) {}

  void emit(StateId from) {
    const int low_digits = std::max<int>(1, static_cast<int>(sizes_.low.whole.size()));
    const int high_digits = sizes_.high ? std::max<int>(1, static_cast<int>(sizes_.high->whole.size())) : low_digits;
    for (int digits = low_digits; digits <= high_digits; ++digits) {
      const bool low = digits == low_digits, high = sizes_.high && digits == high_digits;
      first_digit(from, {digits, low, high, false, 0});
    }
    most_whole_ = std::max(kMostDigits, low_digits + 1);
    if (!sizes_.high) first_digit(from, {low_digits + 1, false, false, true, 0, low_digits + 1});
    while (!to_read_.empty() && builder_.within_limits()) {
      const auto [place, state] = to_read_.back();
      to_read_.pop_back();
      read_on(place, state);
    }
  }

 private:
  // `left`: digits yet to come before the point (0: at its end, below: behind it); `low`, `high`:
  // all digits so far are those of that bound; `more`: further digits may follow those `read`.
  struct Place {
    int left;
    bool low, high, more;
    int64_t remainder;
    int read = 0;
    auto operator<=>(const Place&) const = default;
  };

  static int digit_of(const Decimal& d, int left) {
    if (left > 0) {
      const std::string& whole = d.whole;
      return static_cast<int>(whole.size()) < left ? 0 : whole[whole.size() - left] - '0';
    }
    const size_t at = static_cast<size_t>(-left);
    return at < d.fraction.size() ? d.fraction[at] - '0' : 0;
  }
  // Whether a digit other than 0 stands at `left` or behind.
  static bool rest_is_zero(const Decimal& d, int left) {
    for (int at = left; at > 0; --at) {
      if (digit_of(d, at) != 0) return false;
    }
    return d.fraction.size() <= static_cast<size_t>(left > 0 ? 0 : -left);
  }

  void first_digit(StateId from, const Place& place) {
    read_digits(from, place, /*first=*/place.left > 1);
  }

  std::optional<Place> after(const Place& place, int digit) const {
    Place next = place;
    if (place.low) {
      const int bound = digit_of(sizes_.low, place.left);
      if (digit < bound) return std::nullopt;
      next.low = digit == bound;
    }
    if (place.high) {
      const int bound = digit_of(*sizes_.high, place.left);
      if (digit > bound) return std::nullopt;
      next.high = digit == bound;
    }
    next.remainder = (place.remainder * 10 + digit) % sizes_.divisor.value;
    next.left = place.left - 1;
    return next;
  }

  void read_digits(StateId from, const Place& place, bool first) {
    for (int digit = first ? 1 : 0; digit < 10; ++digit) {
      if (const std::optional<Place> next = after(place, digit)) {
        const auto c = static_cast<uint8_t>('0' + digit);
        builder_.add_byte(from, c, c, state_of(*next));
      }
    }
  }

  bool may_end(const Place& place) const {
    if (place.low && (sizes_.low_exclusive ? true : !rest_is_zero(sizes_.low, place.left))) return false;
    if (place.high && sizes_.high_exclusive && rest_is_zero(*sizes_.high, place.left)) return false;
    int64_t remainder = place.remainder;
    for (int at = -place.left; at < sizes_.divisor.places; ++at) remainder = remainder * 10 % sizes_.divisor.value;
    return remainder == 0;
  }

  StateId state_of(const Place& place) {
    const auto [at, fresh] = states_.try_emplace(place, 0);
    if (fresh) {
      at->second = builder_.add_state();
      to_read_.push_back(*at);  // not at once: a divisor has a hundred thousand places in a row
    }
    return at->second;
  }

  // What follows at a place.
  void read_on(const Place& place, StateId state) {
    if (place.left > 0) return read_digits(state, place, false);
    if (may_end(place)) builder_.add_empty(state, end_);
    const bool counts = sizes_.divisor.value <= kMaxCountedDivisor;
    if (place.left == 0 && place.more && (!counts || place.read < most_whole_)) {
      Place again = place;
      again.left = 1;
      again.read += counts ? 1 : 0;
      read_digits(state, again, false);
    }
    const bool counted = sizes_.divisor.value != 1 || sizes_.divisor.places != 0;
    const int most_behind = counted ? sizes_.divisor.places : most_fraction();
    if (sizes_.integer || -place.left >= most_behind) return;
    Place fraction = place;
    fraction.more = false;
    fraction.read = 0;
    StateId from = state;
    if (place.left == 0) from = builder_.emit_text(state, ".");
    read_digits(from, fraction, false);
  }

  int most_fraction() const {
    const size_t low = sizes_.low.fraction.size(), high = sizes_.high ? sizes_.high->fraction.size() : 0;
    return std::max(kMostDigits, static_cast<int>(std::max(low, high)) + 1);
  }

  GrammarBuilder& builder_;
  const Sizes sizes_;
  const StateId end_;
  int most_whole_ = kMostDigits;
  std::map<Place, StateId> states_;
  std::vector<std::pair<Place, StateId>> to_read_;
};

// Up to `most` digits, of which each may be the last: `end` follows.
void emit_digits(GrammarBuilder* b, StateId from, int most, StateId end) {
  for (int i = 0; i < most; ++i) {
    const StateId next = b->add_state();
    b->add_byte(from, '0', '9', next);
    b->add_empty(next, end);
    from = next;
  }
}

StateId emit_unbounded(GrammarBuilder* b, StateId from, bool integer, bool one_spelling) {
  const StateId whole = b->add_state(), end = b->add_state(), signed_from = b->add_state();
  const auto emit_whole = [&](StateId at, uint8_t least) {
    if (least == '0') b->add_byte(at, '0', '0', end);
    b->add_byte(at, '1', '9', whole);
  };
  emit_whole(from, '0');
  b->add_byte(from, '-', '-', signed_from);
  emit_whole(signed_from, one_spelling ? '1' : '0');
  b->add_empty(whole, end);
  emit_digits(b, whole, kMostDigits - 1, end);
  if (integer || one_spelling) return end;
  const StateId out = b->add_state(), fraction = b->emit_text(end, ".");
  const StateId fraction_end = b->add_state(), exponent = b->add_state();
  emit_digits(b, fraction, kMostDigits, fraction_end);
  for (const StateId at : {end, fraction_end}) {
    b->add_empty(at, out);
    b->add_byte(at, 'e', 'e', exponent);
    b->add_byte(at, 'E', 'E', exponent);
  }
  const StateId exponent_digit = b->add_state();
  b->add_byte(exponent, '+', '+', exponent_digit);
  b->add_byte(exponent, '-', '-', exponent_digit);
  b->add_empty(exponent, exponent_digit);
  emit_digits(b, exponent_digit, kMostExponentDigits, out);
  return out;
}

std::optional<Divisor> divisor_of(const Decimal& d) {
  const std::string digits = d.whole + d.fraction;
  if (digits.size() > 9) return std::nullopt;
  return Divisor{std::stoll(digits), static_cast<int>(d.fraction.size())};
}

}  // namespace

Decimal decimal_of(std::string_view text) {
  Decimal d;
  if (text.starts_with('-')) d.negative = true, text.remove_prefix(1);
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    exponent = std::clamp(std::atoi(std::string(text.substr(e + 1)).c_str()), -kMaxExponent, kMaxExponent);
    text = text.substr(0, e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  if (point < text.size()) digits += text.substr(point + 1);
  int64_t whole = static_cast<int64_t>(point) + exponent;
  if (whole < 0) digits.insert(0, -whole, '0'), whole = 0;
  if (whole > static_cast<int64_t>(digits.size())) digits.append(whole - digits.size(), '0');
  d.whole = digits.substr(0, whole);
  d.fraction = digits.substr(whole);
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
  if (d.is_zero()) d.negative = false;
  return d;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? compare_size(b, a) : compare_size(a, b);
}

bool number_fits(const Decimal& value, const NumberBounds& bounds) {
  if (bounds.integer && !value.is_whole()) return false;
  if (bounds.low) {
    const int order = compare(value, bounds.low->value);
    if (order < 0 || (order == 0 && bounds.low->exclusive)) return false;
  }
  if (bounds.high) {
    const int order = compare(value, bounds.high->value);
    if (order > 0 || (order == 0 && bounds.high->exclusive)) return false;
  }
  if (!bounds.multiple_of) return true;
  const std::optional<Divisor> divisor = divisor_of(*bounds.multiple_of);
  if (!divisor || static_cast<int>(value.fraction.size()) > divisor->places) return false;
  int64_t remainder = 0;
  for (const char c : value.whole + value.fraction) remainder = (remainder * 10 + (c - '0')) % divisor->value;
  for (size_t i = value.fraction.size(); i < static_cast<size_t>(divisor->places); ++i)
    remainder = remainder * 10 % divisor->value;
  return remainder == 0;
}

StateId emit_number(GrammarBuilder* builder, StateId from, const NumberBounds& bounds, bool one_spelling) {
  const bool integer = bounds.integer || one_spelling;
  if (!bounds.bounded()) return emit_unbounded(builder, from, integer, one_spelling);
  Divisor divisor;
  if (bounds.multiple_of) {
    const std::optional<Divisor> known = divisor_of(*bounds.multiple_of);
    if (!known || known->value > kMaxDivisor) {
      builder->fail(Status::unsupported("multipleOf: divisors of more than 100000 steps are not supported"));
      return from;
    }
    divisor = *known;
  }
  const StateId end = builder->add_state();
  const auto emit = [&](StateId at, std::optional<NumberBounds::Bound> low,
                        const std::optional<NumberBounds::Bound>& high) {
    DigitAutomaton::Sizes sizes{.integer = integer, .divisor = divisor};
    if (low) sizes.low = low->value, sizes.low_exclusive = low->exclusive;
    if (high) sizes.high = high->value, sizes.high_exclusive = high->exclusive;
    if (high) {
      const int order = compare(sizes.low, *sizes.high);
      if (order > 0 || (order == 0 && (sizes.low_exclusive || sizes.high_exclusive))) return;
    }
    DigitAutomaton(builder, sizes, end).emit(at);
  };
  const NumberBounds::Bound zero;
  // Not negative.
  if (!bounds.high || !bounds.high->value.negative) {
    const bool from_zero = !bounds.low || bounds.low->value.negative;
    emit(from, from_zero ? zero : *bounds.low, bounds.high);
  }
  // Negative: the sizes of what lies below zero, the bounds' places changed.
  if (!bounds.low || bounds.low->value.negative) {
    std::optional<NumberBounds::Bound> largest;
    if (bounds.low) largest = {negated(bounds.low->value), bounds.low->exclusive};
    NumberBounds::Bound least{{}, true};
    if (bounds.high && bounds.high->value.negative) least = {negated(bounds.high->value), bounds.high->exclusive};
    emit(builder->emit_text(from, "-"), least, largest);
  }
  return end;
}

}  // namespace warpweave::grammar
