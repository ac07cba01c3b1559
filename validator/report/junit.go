package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpuready/gpuready/validator/check"
)

// The JUnit format as Jenkins' junit plugin, GitLab and GitHub's actions parse
// it (github.com/testmoapp/junitxml): seconds as decimals, an RFC 3339 timestamp
// without zone, failure and skipped with a message.
type suites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr"`
	Time     string   `xml:"time,attr"`
	Suites   []suite  `xml:"testsuite"`
}

type suite struct {
	Name       string     `xml:"name,attr"`
	Tests      int        `xml:"tests,attr"`
	Failures   int        `xml:"failures,attr"`
	Errors     int        `xml:"errors,attr"`
	Skipped    int        `xml:"skipped,attr"`
	Time       string     `xml:"time,attr"`
	Timestamp  string     `xml:"timestamp,attr"`
	Hostname   string     `xml:"hostname,attr"`
	Properties []property `xml:"properties>property,omitempty"`
	Cases      []testcase `xml:"testcase"`
}

type property struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type testcase struct {
	Name      string   `xml:"name,attr"`
	Classname string   `xml:"classname,attr"`
	Time      string   `xml:"time,attr"`
	Failure   *finding `xml:"failure,omitempty"`
	Skipped   *finding `xml:"skipped,omitempty"`
	Out       string   `xml:"system-out,omitempty"`
}

type finding struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// junitSuite is a run in terms of JUnit XML.
type junitSuite struct {
	Name, Node string
	Time       time.Time
	Properties [][2]string // name and value
	Cases      []junitCase
}

// junitCase is one check. It passed, unless Failure or Skipped holds why not.
type junitCase struct {
	Name, Class      string
	Elapsed          time.Duration
	Failure, Skipped string
	Reason, Action   string // of a failure
	Out              string
}

func (r Report) writeJUnit(w io.Writer) error {
	s := junitSuite{Name: "gpu-validator", Node: r.Node, Time: r.Time, Properties: [][2]string{{"result", r.Result()}, {"version", r.Version}}}
	for _, o := range r.Outcomes {
		c := junitCase{Name: string(o.Layer), Class: s.Name, Elapsed: o.Elapsed, Out: strings.Join(o.Notes, "\n")}
		switch o.Kind {
		case check.Passed:
			c.Out = strings.TrimSpace(o.Proof.Summary + "\n" + c.Out)
		case check.Failed:
			c.Failure, c.Reason, c.Action = o.NotReady.Message, string(o.NotReady.Reason), o.NotReady.Action
		default:
			c.Skipped = o.NotReady.Message
		}
		s.Cases = append(s.Cases, c)
	}
	return s.writeXML(w)
}

// writeXML writes the suite.
func (s junitSuite) writeXML(w io.Writer) error {
	out := suite{Name: s.Name, Hostname: s.Node, Timestamp: s.Time.UTC().Format("2006-01-02T15:04:05")}
	for _, p := range s.Properties {
		out.Properties = append(out.Properties, property{p[0], p[1]})
	}
	var total time.Duration
	for _, c := range s.Cases {
		total += c.Elapsed
		t := testcase{Name: c.Name, Classname: c.Class, Time: decimal(c.Elapsed), Out: c.Out}
		switch {
		case c.Failure != "":
			out.Failures++
			t.Failure = &finding{Message: c.Failure, Type: c.Reason, Text: c.Failure + "\nnext: " + c.Action}
		case c.Skipped != "":
			out.Skipped++
			t.Skipped = &finding{Message: c.Skipped}
		}
		out.Cases = append(out.Cases, t)
	}
	out.Tests, out.Time = len(out.Cases), decimal(total)
	all := suites{Name: out.Name, Tests: out.Tests, Failures: out.Failures, Skipped: out.Skipped, Time: out.Time, Suites: []suite{out}}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func decimal(d time.Duration) string { return fmt.Sprintf("%.3f", d.Seconds()) }
