package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
)

// verifyPassed verifies the termination message of a pod that succeeded. Exit code 0 alone
// proves nothing, nor does a result of other GPUs or of another driver than this node's.
func (t *attempt) verifyPassed(message string) error {
	action := "see which CDI devices the device plugin hands out"
	verify := ranOnOne
	if t.role == Driver { // the toolkit gives this pod all GPUs
		verify, action = ranOnAll, "see what the toolkit gives to containers that ask with the annotation gpuready.io/management"
	}
	if err := verifyAnswer(message, t.driver, verify); err != nil {
		return refuse(ReasonFailed, "vectorAdd in "+t.role.describe()+": "+err.Error(), action)
	}
	return nil
}

// verifyAnswer verifies the answer in a termination message: the sample passed, with this node's
// driver, and on the right GPUs according to verify.
func verifyAnswer(message string, driver check.Driver, verify func(podAnswer, check.Driver) error) error {
	var a podAnswer
	if err := json.Unmarshal([]byte(message), &a); err != nil || a.Passed == nil {
		return fmt.Errorf("the sample ended with 0 and no result: %q", record.Clean(message, 200))
	}
	if !*a.Passed {
		return errors.New("the sample says that it did not pass: " + record.Clean(a.Error, 1000))
	}
	if a.Simulated != driver.Info.Simulated {
		return fmt.Errorf("the pod was given another driver than the node's: simulated is %t in the pod, %t on the node", a.Simulated, driver.Info.Simulated)
	}
	return verify(a, driver)
}

// ranOnOne verifies that the sample ran on one of this node's GPUs or MIG devices.
func ranOnOne(a podAnswer, driver check.Driver) error {
	for _, g := range driver.GPUs {
		if g.UUID == a.UUID {
			return nil
		}
		for _, m := range g.MIG { // of a driver before R470 any MIG device is the same: see SameDevice
			if probe.SameDevice(m.UUID, string(a.UUID)) {
				return nil
			}
		}
	}
	return fmt.Errorf("the sample ran on %q, which is none of this node's GPUs", record.Clean(string(a.UUID), 100))
}

// ranOnAll verifies that the sample passed on as many units, GPUs or MIG devices, as the node has.
// A count is enough: the pod names the unit of each run itself, once for each.
func ranOnAll(a podAnswer, driver check.Driver) error {
	if want := len(driver.Units()); a.Ran != want {
		return fmt.Errorf("the sample passed on %d of %d GPUs and MIG devices", a.Ran, want)
	}
	return nil
}

// errorText returns the error in a termination message, otherwise the last line of the message.
func errorText(message string) string {
	var a podAnswer
	if json.Unmarshal([]byte(message), &a) == nil && a.Error != "" {
		return record.Clean(a.Error, 1000)
	}
	if strings.TrimSpace(message) == "" {
		return ""
	}
	return lastLine(message)
}
