package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
)

func (a *app) features(_ context.Context, args []string) error {
	if err := newFlags("features", "").Parse(args); err != nil {
		return err
	}
	return printJSON(container.Features(version), "    ")
}

// spec writes a config.json to start from; an existing one is left alone.
func (a *app) spec(_ context.Context, args []string) error {
	fs := newFlags("spec", "")
	bundle := fs.String("bundle", ".", "`directory` to write config.json to")
	fs.StringVar(bundle, "b", ".", "`directory` to write config.json to")
	rootless := fs.Bool("rootless", false, "for a caller without privileges")
	if err := fs.Parse(args); err != nil {
		return err
	}
	data, err := json.MarshalIndent(container.ExampleSpec(*rootless), "", "\t")
	if err != nil {
		return err
	}
	name := *bundle + "/config.json"
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o666)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists; remove it first", name)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}
