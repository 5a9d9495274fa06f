package bootstrap

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/shim/cmdline"
	"github.com/agentsafe/agentsafe/shim/options"
)

// featuresType is how containerd names the JSON of OCI features. Source: containerd, client/client.go.
const featuresType = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

// info prints a RuntimeInfo for the options on standard input.
func (c *command) info(in io.Reader, out io.Writer) error {
	input, err := cmdline.ReadInput(in)
	if err != nil {
		return err
	}
	result := &types.RuntimeInfo{
		Name: Name, Version: &types.RuntimeVersion{Version: c.build.Version, Revision: c.build.Commit},
	}
	if len(input) > 0 {
		var packed anypb.Any
		if err := proto.Unmarshal(input, &packed); err != nil {
			return fmt.Errorf("decode options: %w", err)
		}
		if _, err := options.Parse(&packed); err != nil {
			return err
		}
		result.Options = &packed
	}
	features, err := json.Marshal(container.Features(c.build.Version))
	if err != nil {
		return fmt.Errorf("encode features: %w", err)
	}
	result.Features = &anypb.Any{TypeUrl: featuresType, Value: features}
	data, err := proto.Marshal(result)
	if err != nil {
		return fmt.Errorf("encode runtime information: %w", err)
	}
	_, err = out.Write(data)
	return err
}
