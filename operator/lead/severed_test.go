package lead

import (
	"context"
	"errors"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// severed is a client of a process that may be killed: it gives nothing up then.
type severed struct {
	client.WithWatch
	yes atomic.Bool
}

func (s *severed) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if s.yes.Load() {
		return errors.New("killed")
	}
	return s.WithWatch.Get(ctx, key, o, opts...)
}
