"""parameters.py finds what is defined with six parameters, and nothing else."""
from parameters import many_parameters_of

FOUND = """
struct A : B { A(int a, int b, int c, int d, int e, int f) : x(a) {} };
struct C { virtual int v(int a, int b, int c, int d, int e, int f) const = 0; };
__global__ void __launch_bounds__(4, 2) kernel(int a, int b, int c, int d, int e, std::array<int, 2> f) {}
template <> void special<int>(int a, int b, int c, int d, int e, int f) {}
auto lambda = [&](int a, int b, int c, int d, int e, int f) mutable -> std::vector<int> { return {}; };
A::A(int a, int b, int c, int d, int e, int f) : x(a) {}
void operator()(int a, int b, int c, int d, int e, int f) const {}
[[nodiscard]] Foo& defaults(int a, int b, int c, int d, int e = f(1, 2), int g = 1'000) noexcept { }
"""
OTHERS = """
void five(std::map<int, int> a, int b, int c, int (*d)(int, int), int e) {}
A::A(int a) : x(a, 1, 2, 3, 4, 5), y(a, 1, 2, 3, 4, 5) { if (g(1, 2, 3, 4, 5, 6)) { h(1, 2, 3, 4, 5, 6); } }
// void comment(int a, int b, int c, int d, int e, int f) {}
#define MACRO(a, b, c, d, e, f) {
const char* text = "void f(int a, int b, int c, int d, int e, int f) {";
int n = x ? f(1, 2, 3, 4, 5, 6) : g(1, 2, 3, 4, 5, 6);
"""
names = [name for _, name, _ in many_parameters_of(FOUND)]
assert names == ["A", "v", "kernel", "special", "lambda", "A", "operator()", "defaults"], names
assert [line for line, _, _ in many_parameters_of(FOUND)] == list(range(2, 10))
assert not list(many_parameters_of(OTHERS)), list(many_parameters_of(OTHERS))
