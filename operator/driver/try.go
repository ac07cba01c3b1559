package driver

// Try lets those Choices be rolled out that are worth a try (Problem.Try) where there is
// nothing to keep. sets are the driver DaemonSets that there are, by ID, and whether each
// has the Driver Toolkit's side-car.
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

// hasDriverToKeep reports whether a DaemonSet is made for the pool and has something to lose. One
// that has no side-car loses none when it is rolled out again without.
func (c Choice) hasDriverToKeep(sets map[string]bool) bool {
	for id, sidecar := range sets {
		bare := c.Variant == DriverToolkit && id == c.ID && !sidecar
		if Serves(id, c.Pool) && !bare {
			return true
		}
	}
	return false
}
