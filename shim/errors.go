package shim

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/container"
)

func notFound(format string, args ...any) error {
	return status.Error(codes.NotFound, fmt.Sprintf(format, args...))
}

func alreadyExists(format string, args ...any) error {
	return status.Error(codes.AlreadyExists, fmt.Sprintf(format, args...))
}

func failedPrecondition(format string, args ...any) error {
	return status.Error(codes.FailedPrecondition, fmt.Sprintf(format, args...))
}

func invalidArgument(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
}

// toStatus gives an error the code that containerd and its clients branch on; its text stays as it is.
func toStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codeOf(err), container.ExplainKernel(err).Error())
}

func codeOf(err error) codes.Code {
	var invalid *container.InvalidError
	var refused *profiles.RefusedError
	switch {
	case errors.Is(err, container.ErrNotExist):
		return codes.NotFound
	case errors.Is(err, container.ErrExist):
		return codes.AlreadyExists
	case errors.Is(err, container.ErrNotRunning), errors.Is(err, container.ErrPaused),
		errors.Is(err, container.ErrNotPaused), errors.Is(err, container.ErrRunning):
		return codes.FailedPrecondition
	case errors.Is(err, container.ErrInvalidID), errors.As(err, &invalid):
		return codes.InvalidArgument
	case errors.As(err, &refused):
		return codes.PermissionDenied
	case errors.Is(err, unix.ENOSYS), errors.Is(err, container.ErrNoCheckpoint):
		return codes.Unimplemented
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return codes.Unknown
}
