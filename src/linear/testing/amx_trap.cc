#include "linear/testing/amx_trap.h"

#if defined(__x86_64__)
#include <ucontext.h>
#include <xmmintrin.h>

#include <atomic>
#include <cstring>

#include "ops/kernels/amx_tiles.h"

namespace warpweave::testing_linear {
namespace {

std::atomic<uint64_t> instructions_done = 0;

// In the order of the numbers that instructions have for them.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

enum class Prefix : uint8_t { none = 0,
                              xf3 = 2,
                              xf2 = 3 };

// A VEX instruction of the map 0F 38, of three bytes, W and L 0 (Intel's manual, "Instruction format").
struct Instruction {
  Prefix prefix;
  uint8_t opcode;
  bool of_registers;  // no memory
  int reg, rm, third;
  const char* base = nullptr;
  int64_t stride = 0;
  int length;
};

int64_t read_displacement(const uint8_t* at, int bytes) {
  if (bytes == 1) return static_cast<int8_t>(*at);
  int32_t value = 0;
  if (bytes == 4) std::memcpy(&value, at, 4);
  return value;
}

// False: something else.
bool decode(const uint8_t* code, const greg_t* registers, Instruction* out) {
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) return false;
  const bool index_high = !(code[1] & 0x40), base_high = !(code[1] & 0x20);
  const int mod = code[4] >> 6;
  *out = {.prefix = static_cast<Prefix>(code[2] & 3),
          .opcode = code[3],
          .of_registers = mod == 3,
          .reg = code[4] >> 3 & 7,
          .rm = code[4] & 7,
          .third = ~(code[2] >> 3) & 7,
          .length = 5};
  if (mod == 3) return true;
  const uint8_t* next = code + 5;
  int base = out->rm;
  bool has_base = true;
  if (out->rm == 4) {
    const uint8_t sib = *next++;
    base = sib & 7;
    const int index = (sib >> 3 & 7) + 8 * index_high;
    if (index != 4) out->stride = static_cast<int64_t>(registers[kRegisters[index]]) << (sib >> 6);
    has_base = mod != 0 || base != 5;
  } else if (mod == 0 && base == 5) {
    return false;  // relative to the instruction: no compiler has made one for tiles yet
  }
  int bytes = mod == 1 ? 1 : 0;
  if (mod == 2 || !has_base) bytes = 4;
  int64_t address = read_displacement(next, bytes);
  if (has_base) address += registers[kRegisters[base + 8 * base_high]];
  out->base = reinterpret_cast<const char*>(address);
  out->length = static_cast<int>(next + bytes - code);
  return true;
}

bool load_config(const char* from) {
  AmxTileConfig config;
  std::memcpy(&config, from, sizeof config);
  for (int i = 0; i < 16; ++i) {
    const int most = i < 8 ? 16 : 0;
    if (config.rows[i] > most || config.row_bytes[i] > 4 * most) return false;
  }
  emulated_tiles = {};
  emulated_tiles.config = config;
  return config.palette == 1 && config.start_row == 0;
}

bool is_configured(int tile) { return emulated_tiles.config.rows[tile] > 0; }

// False: not one of these, or the CPU would refuse it.
bool run(const Instruction& i) {
  if (i.opcode == 0x49 && i.prefix == Prefix::none) {
    if (!i.of_registers) return load_config(i.base);
    emulated_tiles = {};
    return i.reg == 0 && i.rm == 0;
  }
  if (!is_configured(i.reg)) return false;
  if (i.opcode == 0x49 && i.prefix == Prefix::xf2 && i.of_registers) {
    std::memset(emulated_tiles.bytes[i.reg], 0, sizeof emulated_tiles.bytes[i.reg]);
  } else if (i.opcode == 0x4b && i.prefix == Prefix::xf2 && !i.of_registers && i.rm == 4) {
    emulated_load(i.reg, i.base, i.stride);
  } else if (i.opcode == 0x4b && i.prefix == Prefix::xf3 && !i.of_registers && i.rm == 4) {
    emulated_store(i.reg, const_cast<char*>(i.base), i.stride);
  } else if (i.opcode == 0x5c && i.prefix == Prefix::xf3 && i.of_registers) {
    if (i.reg == i.rm || i.reg == i.third || i.rm == i.third || !is_configured(i.rm)) return false;
    emulated_dot_bf16(i.reg, i.rm, i.third);
  } else {
    return false;
  }
  return true;
}

void on_illegal_instruction(int, siginfo_t*, void* context) {
  _mm_setcsr(_mm_getcsr() | 0x8040);  // denormals are zeros to tiles; what was interrupted has its own setting back after
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction instruction;
  if (!decode(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers, &instruction) || !run(instruction)) {
    signal(SIGILL, SIG_DFL);  // raised again on return
    return;
  }
  registers[REG_RIP] += instruction.length;
  instructions_done.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

AmxTrap::AmxTrap() {
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, &before_);
}
AmxTrap::~AmxTrap() { sigaction(SIGILL, &before_, nullptr); }

uint64_t AmxTrap::instructions() { return instructions_done; }

}  // namespace warpweave::testing_linear
#endif
