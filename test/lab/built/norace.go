//go:build !race

package built

// dir is the folder in which programs are built.
const dir = "bin"

// mode lists the variables for make.
var mode []string
