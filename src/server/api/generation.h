// One HTTP request while the engine works on it: n sequences in, one answer or one stream out.
//
// Deltas of different sequences may come from different threads; a lock puts them in line. The
// answer is written on the thread of the delta that completes it. When the client goes away, or a
// sequence fails, all sequences are aborted in the engine.
//
// A stream whose reader is behind waits: what the engine says meanwhile is kept, joined to one delta a sequence, and
// becomes events when there is room. So no such stream is cut, and nobody holds more than a whole answer's deltas.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/api_state.h"
#include "server/api/errors.h"

namespace warpweave::server {

// Gives the deltas of one request's sequences their shape. Called under the request's lock.
class ResponseBuilder {
 public:
  virtual ~ResponseBuilder() = default;

  // Takes in the next delta of sequence `index`. For a stream, appends its server-sent events; else null.
  virtual void add(size_t index, const OutputDelta& delta, std::string* events) = 0;
  // What a stream says after its last delta, before [DONE].
  virtual void append_last_events(std::string* events) {}
  // The whole answer; not for streams.
  virtual std::string body() = 0;

  virtual ErrorShape error_shape() const { return ErrorShape::openai; }
  // What stands behind the last event of a stream.
  virtual std::string_view stream_end() const { return "data: [DONE]\n\n"; }
  // The event that says so in a stream that fails.
  virtual void append_error_event(const Status& error, std::string* events);
};

struct GenerationJob {
  std::vector<GenerateRequest> requests;  // not empty; rids all different
  std::unique_ptr<ResponseBuilder> builder;
  bool stream = false;
  std::string group_rid;  // what /abort_request calls all of them
  std::unique_ptr<SessionStore::Turn> turn = nullptr;  // of a session, for the one sequence
};

// Submits the sequences and returns; the answer follows through `writer`. A refusal by the engine
// is answered as an error.
void start_generation(std::shared_ptr<Api> api, GenerationJob job,
                      std::shared_ptr<ResponseWriter> writer);

// rid of sequence `index` of a group of `count`: the group's own when there is only one.
std::string sequence_rid(const std::string& group_rid, size_t index, size_t count);

}  // namespace warpweave::server
