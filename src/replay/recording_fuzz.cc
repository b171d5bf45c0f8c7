// Any bytes as a recording: refused, or a batch and calls that a backend may run.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "replay/recording.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto recording = warpweave::parse_recording({reinterpret_cast<const char*>(data), size});
  if (!recording.ok()) return 0;
  (void)recording->batch();
  (void)warpweave::recording_bytes(*recording);
  for (const warpweave::RecordedLayer& layer : recording->layers) (void)recording->call(layer, nullptr, nullptr);
  return 0;
}
