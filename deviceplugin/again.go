package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/gpuready/gpuready/deviceplugin/handover"
)

// handedOver is the configuration in force, which a program hands over to its successor
// besides the sockets. The file may have changed by then, and may be invalid.
type handedOver struct {
	Name   string            `json:"name"`   // in --config-dir
	Data   []byte            `json:"data"`   // the file; nil: no file
	Labels map[string]string `json:"labels"` // labels by which the node chose; nil: unknown
}

// reexec executes this program again with the sockets and the configuration in force,
// even if its file was replaced meanwhile. It returns only on failure.
func (o *options) reexec(sockets map[string]*os.File) error {
	word, err := o.watcher.handoverData()
	if err != nil {
		return err
	}
	return handover.Exec("/proc/self/exe", sockets, word)
}

// handoverData returns the data for the next program; nil: it needs none.
func (f *configWatcher) handoverData() ([]byte, error) {
	if f.first.path() == "" || f.inForce == nil {
		return nil, nil
	}
	return json.Marshal(handedOver{Name: f.inForce.name, Data: f.inForce.data, Labels: f.labels})
}

// readHandover reads the data of the previous program.
func (o *options) readHandover() error {
	word, err := handover.Data()
	if err != nil || word == nil {
		return err
	}
	o.previous = new(handedOver)
	if err := json.Unmarshal(word, o.previous); err != nil {
		return fmt.Errorf("the data handed over by the previous program: %w", err)
	}
	return nil
}

// withPrevious returns the options with the configuration of the previous program; nil:
// there was none.
func (o *options) withPrevious() *options {
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
