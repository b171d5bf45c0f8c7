#include "engine/step_trace.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/log.h"

namespace warpweave {
namespace {

double microseconds(std::chrono::steady_clock::duration span) {
  return std::chrono::duration<double, std::micro>(span).count();
}

}  // namespace

std::string_view mode_name(ForwardMode mode) {
  switch (mode) {
    case ForwardMode::extend: return "prefill";
    case ForwardMode::decode: return "decode";
    case ForwardMode::mixed: return "mixed";
    case ForwardMode::target_verify: return "verify";
    case ForwardMode::idle:
    case ForwardMode::draft_extend: break;
  }
  return "other";
}

Status StepTrace::start(const ProfileRequest& request) {
  std::lock_guard lock(mutex_);
  if (active_) return Status::invalid_argument("a profile is being recorded already; send /stop_profile first");
  std::error_code error;
  std::filesystem::create_directories(request.folder, error);
  if (error) return Status::internal("the folder of --profile-dir cannot be made: " + error.message());
  request_ = request;
  steps_.clear();
  written_.reset();
  begun_ = std::chrono::steady_clock::now();
  active_ = true;
  return {};
}

void StepTrace::record(const Step& step) {
  const int64_t before = steps_seen_++;
  if (!active_) return;
  std::lock_guard lock(mutex_);
  const int most = request_.num_steps > 0 ? std::min(request_.num_steps, kMaxSteps) : kMaxSteps;
  if (!active_ || step.launched < begun_ || before < request_.start_step) return;
  steps_.push_back(step);
  if (static_cast<int>(steps_.size()) < most) return;
  active_ = false;
  written_ = write();
  if (!written_->ok()) LOG_ERROR("the profile is lost: {}", written_->status().message());
}

Result<std::string> StepTrace::stop() {
  std::lock_guard lock(mutex_);
  if (!active_) {
    if (written_) return *std::exchange(written_, std::nullopt);
    return Status::invalid_argument("no profile is being recorded; send /start_profile first");
  }
  active_ = false;
  return write();
}

Result<std::string> StepTrace::write() {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  const std::string path = fmt::format("{}/warpweave-{}.trace.json", request_.folder, seconds.count());
  std::ofstream file(path);
  file
      << R"({"traceEvents":[{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"host: schedule and prepare"}},)"
      << R"({"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"device: forward and sample"}})";
  for (const Step& step : steps_) {
    const std::string args = fmt::format(R"("args":{{"requests":{},"tokens":{}}})", step.requests, step.tokens);
    const double launched = microseconds(step.launched - begun_), finished = microseconds(step.finished - begun_);
    file << fmt::format(R"(,{{"ph":"X","pid":1,"tid":1,"name":"{}","ts":{:.1f},"dur":{:.1f},{}}})", step.mode,
                        launched - step.host_us, step.host_us, args)
         << fmt::format(R"(,{{"ph":"X","pid":1,"tid":2,"name":"{}","ts":{:.1f},"dur":{:.1f},{}}})", step.mode,
                        finished - step.device_us, step.device_us, args);
  }
  file << "]}\n";
  file.close();
  steps_ = {};
  if (file) return path;
  std::error_code ignored;
  std::filesystem::remove(path, ignored);  // a part of a trace is none
  return Status::internal(path +
                          " could not be written; --profile-dir needs a folder with room that this user may write to");
}

}  // namespace warpweave
