package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/gpuready/gpuready/deviceplugin/handover"
)

// last is what a program leaves to the one that takes its place besides sockets: the
// configuration in force. What is in the place of its file may be another by then,
// and none that can be served.
type last struct {
	Name   string            `json:"name"`   // where it is one of several
	Data   []byte            `json:"data"`   // the file; nil: there was none
	Labels map[string]string `json:"labels"` // what the node chose by; nil: that was not said
}

// again executes this program anew with the sockets and the configuration in force,
// also where its file was replaced meanwhile. It returns only if that fails.
func (o *options) again(sockets map[string]*os.File) error {
	word, err := o.following.last()
	if err != nil {
		return err
	}
	return handover.Exec("/proc/self/exe", sockets, word)
}

// last is what to leave to the next program; nil: it needs nothing.
func (f *follower) last() ([]byte, error) {
	if f.first.path() == "" || f.inForce == nil {
		return nil, nil
	}
	return json.Marshal(last{Name: f.inForce.name, Data: f.inForce.data, Labels: f.labels})
}

// inherit takes up what the program before has left.
func (o *options) inherit() error {
	word, err := handover.Word()
	if err != nil || word == nil {
		return err
	}
	o.before = new(last)
	if err := json.Unmarshal(word, o.before); err != nil {
		return fmt.Errorf("what the program before has handed over: %w", err)
	}
	return nil
}

// asBefore are the options with the configuration of the program before; nil: there
// was none.
func (o *options) asBefore() *options {
	if o.before == nil {
		return nil
	}
	next, err := o.with(o.before.Name, o.before.Data)
	if err != nil {
		return nil
	}
	next.before = o.before
	return next
}
