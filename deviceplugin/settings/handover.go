package settings

import (
	"encoding/json"
	"fmt"
)

// handedOver is the configuration in force, which a program hands over to its successor
// besides the sockets. The file may have changed by then, and may be invalid.
type handedOver struct {
	Name   string            `json:"name"`   // in --config-dir
	Data   []byte            `json:"data"`   // the file; nil: no file
	Labels map[string]string `json:"labels"` // labels by which the node chose; nil: unknown
}

// HandoverData returns the data for the next program; nil: it needs none.
func (f *Watcher) HandoverData() ([]byte, error) {
	if f.first.path() == "" || f.inForce == nil {
		return nil, nil
	}
	return json.Marshal(handedOver{Name: f.inForce.Name, Data: f.inForce.data, Labels: f.labels})
}

// readPrevious decodes the data of the previous program.
func (o *Options) readPrevious() error {
	if o.command.Previous == nil {
		return nil
	}
	o.previous = new(handedOver)
	if err := json.Unmarshal(o.command.Previous, o.previous); err != nil {
		return fmt.Errorf("the data handed over by the previous program: %w", err)
	}
	return nil
}

// withPrevious returns the options with the configuration of the previous program; nil:
// there was none.
func (o *Options) withPrevious() *Options {
	if o.previous == nil {
		return nil
	}
	next, err := o.withFile(o.previous.Name, o.previous.Data)
	if err != nil {
		return nil
	}
	next.previous = o.previous
	return next
}
