package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// client sends requests to the agent in a machine. Several may be under way at a time.
type client struct {
	serving chan struct{} // closed once the agent serves
	ended   chan struct{} // closed once the connection has ended

	mu      sync.Mutex
	out     io.Writer
	last    int
	waiting map[int]chan Response
}

var errEnded = errors.New("the machine has ended")

func newClient(in io.Reader, out io.Writer) *client {
	c := &client{serving: make(chan struct{}), ended: make(chan struct{}), out: out, waiting: map[int]chan Response{}}
	go c.receive(in)
	return c
}

// receive passes responses to their waiting callers. It skips anything that the firmware writes
// to the port before the agent does.
func (c *client) receive(in io.Reader) {
	defer close(c.ended)
	lines := bufio.NewReaderSize(in, 64<<10)
	serving := false
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r Response
		if json.Unmarshal(line, &r) != nil {
			continue
		}
		if r.ID == 0 {
			if !serving {
				close(c.serving)
			}
			serving = true
			continue
		}
		c.mu.Lock()
		if response, ok := c.waiting[r.ID]; ok {
			response <- r // buffered
			delete(c.waiting, r.ID)
		}
		c.mu.Unlock()
	}
}

// call sends a request and returns the response. The error is from the connection or from the
// response.
func (c *client) call(ctx context.Context, r Request) (Response, error) {
	response := make(chan Response, 1)
	if err := c.send(r, response); err != nil {
		return Response{}, err
	}
	select {
	case a := <-response:
		return a, a.Err()
	case <-c.ended:
		return Response{}, errEnded
	case <-ctx.Done():
		return Response{}, fmt.Errorf("the machine's agent did not answer: %w", context.Cause(ctx))
	}
}

func (c *client) send(r Request, response chan Response) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	r.ID = c.last
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	c.waiting[r.ID] = response
	if _, err := c.out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("%w: %w", errEnded, err)
	}
	return nil
}
