package measure

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// createAttempts bounds the requests to create an object that get no answer.
const createAttempts = 5

// create creates an object of the sample at the path of its kind. A request without an answer is
// repeated. If the object exists by then, the first has succeeded: no other object has its name.
func (s *Session) create(ctx context.Context, path string, object any) error {
	for attempt := 1; ; attempt++ {
		err := s.Client.Create(ctx, path, object, nil)
		switch {
		case attempt > 1 && apierrors.IsAlreadyExists(err):
			return nil
		case err == nil, ctx.Err() != nil, attempt == createAttempts, isAnswer(err):
			return err
		}
		s.Log.Warn("no answer to the creation of an object; trying again", "path", path, "error", err)
		if err := s.pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// isAnswer reports whether an error is an answer of the API server. Otherwise it is not known whether
// the request was served.
func isAnswer(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}

// pause observes changes for some time: the Observer requires that they are read.
func (s *Session) pause(ctx context.Context, d time.Duration) error {
	limit := time.NewTimer(d)
	defer limit.Stop()
	for {
		select {
		case c := <-s.Observer.Changes():
			s.observeChange(c)
		case <-limit.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
