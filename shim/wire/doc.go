// Package wire reads and writes protocol buffer messages by the numbers of their fields.
//
// containerd's sandbox API and CRI have generated Go types, but those come in packages that link gRPC with HTTP/2 and
// TLS: 5 MiB and milliseconds in a program that is started for each pod. The few fields that a shim needs of them are
// taken from the bytes instead. A handler receives an emptypb.Empty, which keeps what it does not know.
//
// Data in: the bytes of a message, at most what ttrpc lets through. Data out: [Message], or an error for bytes that are
// no message. Unknown fields are ignored, as the format demands. Groups are refused. Minimum kernel: none.
package wire
