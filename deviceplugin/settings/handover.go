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

// HandoverData returns the data for the program that this process is about to execute; nil: it
// needs none, since no configuration file is in use or in force.
func (w *Watcher) HandoverData() ([]byte, error) {
	if w.first.watchedPath() == "" || w.inForce == nil {
		return nil, nil
	}
	return json.Marshal(handedOver{Name: w.inForce.Name, Data: w.inForce.data, Labels: w.labels})
}

// readHandedOver decodes the data that the previous program in this process handed over.
func (o *Options) readHandedOver() error {
	if o.command.Previous == nil {
		return nil
	}
	o.handedOver = new(handedOver)
	if err := json.Unmarshal(o.command.Previous, o.handedOver); err != nil {
		return fmt.Errorf("the data handed over by the previous program: %w", err)
	}
	return nil
}

// withHandedOver returns the options with the configuration that was in force in the previous
// program. It returns nil if there was no previous program, or if this program refuses its
// configuration.
func (o *Options) withHandedOver() *Options {
	if o.handedOver == nil {
		return nil
	}
	next, err := o.withFile(o.handedOver.Name, o.handedOver.Data)
	if err != nil {
		return nil
	}
	next.handedOver = o.handedOver
	return next
}
