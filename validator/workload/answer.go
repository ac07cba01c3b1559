package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/sample"
	"github.com/gpuready/gpuready/validator/workload/inside"
)

// passed reads what a pod left that ended well. An exit of 0 alone proves nothing, and
// neither does a result of other GPUs or of another driver than this node's.
func (t *attempt) passed(words string) error {
	action := "see which CDI devices the device plugin hands out"
	verify := ranOnOne
	if t.role == Driver {
		verify, action = ranOnAll, "see what the toolkit gives to containers that ask with the annotation gpuready.io/management"
	}
	if err := verdict(words, t.driver, verify); err != nil {
		return refuse(ReasonFailed, "vectorAdd in "+t.role.who()+": "+err.Error(), action)
	}
	return nil
}

func verdict(words string, driver check.Driver, verify func(inside.Answer, check.Driver) error) error {
	var a inside.Answer
	if err := json.Unmarshal([]byte(words), &a); err != nil || a.Passed == nil {
		return fmt.Errorf("the sample ended well and left no answer: %q", record.Clean(words, 200))
	}
	if !*a.Passed {
		return errors.New("the sample says that it did not pass: " + record.Clean(a.Error, 1000))
	}
	if a.Simulated != driver.Info.Simulated {
		return fmt.Errorf("the pod was given another driver than this node's: simulated is %t there, %t here", a.Simulated, driver.Info.Simulated)
	}
	return verify(a, driver)
}

// ranOnOne wants the sample to have run on one of this node's GPUs or MIG devices.
func ranOnOne(a inside.Answer, driver check.Driver) error {
	for _, g := range driver.GPUs {
		if g.UUID == a.UUID {
			return nil
		}
		for _, m := range g.MIG {
			if sample.Names(m.UUID, string(a.UUID)) {
				return nil
			}
		}
	}
	return fmt.Errorf("the sample ran on %q, which is none of this node's GPUs", record.Clean(string(a.UUID), 100))
}

// ranOnAll wants it to have run on each of those that the pod was told of.
func ranOnAll(a inside.Answer, driver check.Driver) error {
	if want := len(driver.Units()); a.Ran != want {
		return fmt.Errorf("the sample ran on %d of %d GPUs", a.Ran, want)
	}
	return nil
}

// words quotes the answer's error, else what else was left.
func words(left string) string {
	var a inside.Answer
	if json.Unmarshal([]byte(left), &a) == nil && a.Error != "" {
		return record.Clean(a.Error, 1000)
	}
	if strings.TrimSpace(left) == "" {
		return ""
	}
	return inside.Last(left)
}
