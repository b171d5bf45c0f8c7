// What a server asks of its process: to live on when its output goes away, and file descriptors for its
// connections. Call before other threads start.
#pragma once

#include <string>

namespace warpweave {

// A reader of our output that ends, or a file that is full, is an error of that write and no signal that
// ends the process. Standard streams that were closed become /dev/null, so that no socket takes their
// place and receives what is printed.
void survive_lost_output();

// Raises the limit of open files to what `max_connections` needs, as far as the system allows. Returns how
// many connections fit; fewer than asked: `note` says so.
struct ConnectionRoom {
  int max_connections = 0;
  std::string note;
};
ConnectionRoom make_connection_room(int max_connections, int spare_connections);

}  // namespace warpweave
