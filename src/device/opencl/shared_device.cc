#include "device/opencl/shared_device.h"

#include <vector>

#include "base/log.h"

namespace warpweave::opencl {

Result<std::shared_ptr<SharedDevice>> SharedDevice::get(int threads) {
  static std::mutex mutex;
  // Never destroyed: drivers have threads of their own, which may outlive static objects.
  static auto& opened = *new std::map<int, std::shared_ptr<SharedDevice>>;
  std::lock_guard lock(mutex);
  if (const auto found = opened.find(threads); found != opened.end()) return found->second;
  WW_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> all, devices());
  WW_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::open(all.front(), threads));
  const DeviceInfo& info = device->info();
  LOG_INFO("OpenCL device: {} ({}), {} compute units", info.name, info.platform, info.compute_units);
  return opened.emplace(threads, std::make_shared<SharedDevice>(std::move(device))).first->second;
}

Result<Program*> SharedDevice::program(const ProgramSource& source) {
  std::unique_ptr<Program>& program = programs_[source.options + "\n" + source.text];
  if (program == nullptr) {
    WW_ASSIGN_OR_RETURN(program, Program::build(*device_, source, cache_));
  }
  return program.get();
}

}  // namespace warpweave::opencl
