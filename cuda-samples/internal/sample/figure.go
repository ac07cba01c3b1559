package sample

import "fmt"

// String formats the figure for people: "copy: 3103.0 GB/s, 93 % of the peak of 3350.0 GB/s".
func (f Figure) String() string {
	if f.Value == 0 { // a simulated GPU's speed means nothing: Run.Figure leaves it out
		return f.Name + ": n/a (simulated)"
	}
	s := f.Name + ": " + Speed(f.Value, f.Unit)
	if f.Peak > 0 {
		s += fmt.Sprintf(", %.0f %% of the peak of %s", 100*f.Value/f.Peak, Speed(f.Peak, f.Unit))
	}
	return s
}

// Speed formats a value in FLOP/s as TFLOP/s, and one in B/s, the only other unit, as GB/s.
func Speed(value float64, unit string) string {
	if unit == "FLOP/s" {
		return fmt.Sprintf("%.1f TFLOP/s", value/1e12)
	}
	return fmt.Sprintf("%.1f GB/s", value/1e9)
}
