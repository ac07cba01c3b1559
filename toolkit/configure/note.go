package configure

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/gpuready/gpuready/toolkit/runtime"
)

// note holds everything that is needed to finish a change, also after this process was killed.
type note struct {
	Before runtime.Info   `json:"before"`
	Want   runtime.Want   `json:"want"`
	Edits  []runtime.Edit `json:"edits"`
	Plan   string         `json:"plan"` // hash
}

// refusedNote is the name of the store's note with a refusal.
const refusedNote = "refused.json"

// refusal records a plan that must not be tried again.
type refusal struct {
	Plan    string `json:"plan"`
	Version string `json:"version"` // of the runtime
	Message string `json:"message"`
	// Undoing is set until the runtime has loaded its old configuration.
	Undoing *note  `json:"undoing,omitempty"`
	Why     string `json:"why,omitempty"` // why Undoing is undone
}

func (c *Configurer) commit() error {
	if err := c.Store.Commit(); err != nil {
		return err
	}
	return c.Store.SetNote(refusedNote, nil)
}

// refused returns the recorded refusal; it is empty if there is none.
func (c *Configurer) refused() (r refusal, err error) {
	data, err := c.Store.Note(refusedNote)
	if err != nil || data == nil {
		return r, err
	}
	if unreadable := json.Unmarshal(data, &r) != nil; unreadable {
		r = refusal{} // it only avoids a restart
	}
	return r, nil
}

// refuse records a refusal for later calls and processes.
func (c *Configurer) refuse(r refusal) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return c.Store.SetNote(refusedNote, data)
}

// hash returns a string that identifies a plan.
func hash(edits []runtime.Edit, want runtime.Want) string {
	data, err := json.Marshal(struct {
		Edits []runtime.Edit
		Want  runtime.Want
	}{edits, want})
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
