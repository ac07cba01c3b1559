//go:build !race

package built

// dir is where programs are built, and mode are the variables for make.
const dir = "bin"

var mode []string
