package driver

// Try allows Choices with Problem.Try to be rolled out if the pool has no driver to keep. sets
// are the existing driver DaemonSets by ID; the value is true if it has the Driver Toolkit's
// side-car.
func Try(choices []Choice, sets map[string]bool) {
	for i, c := range choices {
		if c.Problem == nil || !c.Problem.Try || c.hasDriverToKeep(sets) {
			continue
		}
		tried := *c.Problem
		tried.Keep = false
		choices[i].Problem = &tried
	}
}

// hasDriverToKeep reports whether a DaemonSet for the pool has something to lose. One without a
// side-car loses none when it is rolled out again without.
func (c Choice) hasDriverToKeep(sets map[string]bool) bool {
	for id, sidecar := range sets {
		bare := c.Variant == DriverToolkit && id == c.ID && !sidecar
		if Serves(id, c.Pool) && !bare {
			return true
		}
	}
	return false
}
