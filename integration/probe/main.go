package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: probe report | access PATH... | landlock | dial NETWORK ADDR | get URL | serve ADDR WORD")
		os.Exit(2)
	}
	args := os.Args[2:]
	var err error
	switch verb := os.Args[1]; verb {
	case "report":
		err = json.NewEncoder(os.Stdout).Encode(newReport())
	case "access":
		access(args)
	case "landlock":
		fmt.Println(landlockABI())
	case "dial":
		err = dial(args)
	case "get":
		err = get(args)
	case "serve":
		err = serve(args)
	case "call": // one call of the table in a process of its own: see callApart
		err = callHere(args)
	case "nop":
	default:
		err = fmt.Errorf("unknown verb %q", verb)
	}
	if err != nil {
		fmt.Println(errName(err))
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}
