package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

const (
	maxRequest = 4 << 10
	maxAnswer  = 64 << 10
	// callLimit bounds one request on the server: NVML's own limit is 20 s for a call.
	callLimit = 30 * time.Second
)

// Server serves the socket.
type Server struct {
	Socket string
	// Maker returns the open driver; nil: there is none.
	Maker func() Maker
	// Changed is called after the MIG layout has changed.
	Changed func()
	Log     *slog.Logger
}

// Run serves until ctx ends, and then returns nil. A request that is under way is finished.
func (s Server) Run(ctx context.Context) error {
	if err := os.Remove(s.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("serve requests for partitions: %w", err)
	}
	ln, err := net.Listen("unix", s.Socket)
	if err != nil {
		return fmt.Errorf("serve requests for partitions: %w", err)
	}
	if err := os.Chmod(s.Socket, 0o600); err != nil { // root alone, as the capability mig/config
		return errors.Join(fmt.Errorf("serve requests for partitions: %w", err), ln.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /create", func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, s.create) })
	mux.HandleFunc("POST /destroy", func(w http.ResponseWriter, r *http.Request) { s.handle(w, r, s.destroy) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug)}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		_ = server.Shutdown(ending)
	})
	err = server.Serve(ln)
	if !stop() {
		<-stopped
		return nil
	}
	return fmt.Errorf("serve requests for partitions: %w", err)
}

// handle reads a request, has it done, and answers. It is done even if the client has gone.
func (s Server) handle(w http.ResponseWriter, r *http.Request, do func(context.Context, *http.Request, Maker, gpu.Placement) (answer, error)) {
	var q request
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	if err := d.Decode(&q); err != nil || q.GPU == "" || q.Profile < 0 || q.Start < 0 || q.Size <= 0 || q.Start+q.Size > 64 {
		http.Error(w, "want a placement: gpu, profile, start, size", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), callLimit)
	defer cancel()
	began := time.Now()
	var a answer
	err := ErrUnavailable
	if maker := s.Maker(); maker != nil {
		a, err = do(ctx, r, maker, q.Placement)
	}
	a.DriverTime = time.Since(began)
	log := s.Log.With("operation", r.URL.Path[1:], "uuid", string(q.GPU), "profile", q.Profile, "start", q.Start, "duration", a.DriverTime.Round(time.Millisecond))
	if err != nil {
		a.Code, a.Message, a.Partition = codeOf(err), err.Error(), nil
		log.Error("the MIG layout could not be changed", "message", a.Message)
	} else {
		log.Info("the MIG layout was changed")
	}
	if !errors.Is(err, ErrUnavailable) {
		s.Changed()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a)
}

// create creates a partition, and destroys it again if its client has gone meanwhile: only this
// process knows for certain that nobody else has created it.
func (s Server) create(ctx context.Context, r *http.Request, maker Maker, at gpu.Placement) (answer, error) {
	made, err := maker.CreatePartition(ctx, at)
	if err != nil {
		return answer{}, err
	}
	if r.Context().Err() != nil {
		if err := maker.DestroyPartition(ctx, at); err != nil {
			return answer{}, fmt.Errorf("%w: its client has gone, and removing it failed: %w", gpu.ErrLeftover, err)
		}
		return answer{}, errors.New("its client has gone: the partition was removed again")
	}
	return answer{Partition: &made}, nil
}

func (s Server) destroy(ctx context.Context, _ *http.Request, maker Maker, at gpu.Placement) (answer, error) {
	return answer{}, maker.DestroyPartition(ctx, at)
}
