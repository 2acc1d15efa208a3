// Whether the client of a request is still there. The HTTP library tells its handlers the client's address alone.
#pragma once

#include <string>

namespace engine::serve {

// The open socket of this process whose other end has this address and port; −1: there is none. A handler's connection stays open while it
// runs, so the answer holds as long.
int SocketOf(const std::string& address, int port);

// The other end has closed the connection, or its sending half: a client that wants an answer keeps both.
bool HasLeft(int socket);

// Ends a connection whose client may still send what nobody reads: says that nothing more comes, and for half a second at most takes what does,
// as a connection that is closed with bytes unread is reset, and the answer with it (RFC 9112, 9.6).
void EndRefused(int socket);

}  // namespace engine::serve
