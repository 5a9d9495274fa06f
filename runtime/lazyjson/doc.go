// Package lazyjson reads and writes the JSON of specs and states as encoding/json does, but looks only at the types of
// values that are there.
//
// encoding/json prepares an encoder for every type that a type can reach before the first value is read or written, for
// runtime-spec's some 60 types. A program that lives for ten milliseconds spends a tenth of them on that, and on 300 KiB
// of heap that it then throws away. This package walks the value instead, and takes a struct's tags apart when the first
// such struct comes along.
//
// It defines no dialect. What it can't do itself (types with their own methods for JSON or text, interfaces, arrays,
// floats, strings with escapes), it hands to encoding/json value by value; and what it does not take for plain and valid
// JSON that fits the type, it hands over as a whole, so that errors are encoding/json's own, with its offsets.
//
// Data in: bytes and a pointer to a zero value. Data out: the value, or bytes that are the same as encoding/json's.
// It refuses what encoding/json refuses. It makes no system call.
//
// Rejected: encoding/json/v2, which is lazy in this way, but experimental, and a quarter of a megabyte of code more;
// generated coders for the specs' types, which have to be generated anew with each release of theirs.
package lazyjson
