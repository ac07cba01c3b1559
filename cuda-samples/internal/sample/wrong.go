package sample

import (
	"cmp"
	"fmt"
	"strings"
)

// MaxListed bounds the wrong results that a report lists. It counts all.
const MaxListed = 16

// WrongError is the error for wrong results of a GPU.
type WrongError struct {
	What  string  // the first one: "element 7", "the word at 0x7f0000001000"
	Of    string  // what is counted: "elements", "words"
	Wrong []Wrong // the first ones, at least one
	Count int     // of all
}

func (e *WrongError) Error() string {
	first, count := e.Wrong[0], fmt.Sprintf("%d %s are", e.Count, e.Of)
	if e.Count == 1 {
		count = "1 " + strings.TrimSuffix(e.Of, "s") + " is"
	}
	return fmt.Sprintf("%s is wrong: expected %s, got %s (%s wrong)",
		e.What, first.Want, first.Got, count)
}

// Elements collects the wrong elements of a result.
type Elements struct {
	What string // name of an element, before the index; "": "element"

	e WrongError
}

// Add adds a wrong element at an index: i, or row and column.
func (w *Elements) Add(want, got any, index ...int) {
	if w.e.Count++; w.e.Count > MaxListed {
		return
	}
	w.e.Wrong = append(w.e.Wrong, Wrong{Index: index, Want: fmt.Sprint(want), Got: fmt.Sprint(got)})
}

// Err returns a *WrongError, or nil where no element is wrong.
func (w *Elements) Err() error {
	if w.e.Count == 0 {
		return nil
	}
	index := strings.Trim(strings.ReplaceAll(fmt.Sprint(w.e.Wrong[0].Index), " ", ", "), "[]")
	w.e.What, w.e.Of = cmp.Or(w.What, "element")+" "+index, "elements"
	return &w.e
}
