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

func (r Report) junit(w io.Writer) error {
	s := suite{
		Name: "gpu-validator", Hostname: r.Node, Timestamp: r.Time.UTC().Format("2006-01-02T15:04:05"),
		Properties: []property{{"result", r.Result()}, {"version", r.Version}},
	}
	var total time.Duration
	for _, o := range r.Outcomes {
		total += o.Elapsed
		c := testcase{Name: string(o.Layer), Classname: "gpu-validator", Time: decimal(o.Elapsed), Out: strings.Join(o.Notes, "\n")}
		switch o.Kind {
		case check.Passed:
			c.Out = strings.TrimSpace(o.Proof.Summary + "\n" + c.Out)
		case check.Failed:
			s.Failures++
			c.Failure = &finding{Message: o.Refusal.Message, Type: string(o.Refusal.Reason), Text: o.Refusal.Message + "\nnext: " + o.Refusal.Action}
		default:
			s.Skipped++
			c.Skipped = &finding{Message: o.Refusal.Message}
		}
		s.Cases = append(s.Cases, c)
	}
	s.Tests, s.Time = len(s.Cases), decimal(total)
	all := suites{Name: s.Name, Tests: s.Tests, Failures: s.Failures, Skipped: s.Skipped, Time: s.Time, Suites: []suite{s}}
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
