package main

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The drawing's measures, in pixels. A cell is as wide as those of most fonts of that size.
const (
	cellWidth = 9
	rowHeight = 19
	fontSize  = 15
	baseline  = 14 // below the top of a row
	margin    = 18
	titleBar  = 42
)

// gap is the space between two frames, which lie side by side, in pixels. A letter that leaves its frame
// does not reach the next one.
const gap = 200

// pause is the time for which the last frame is shown before the recording begins again.
const pause = 4 * time.Second

const (
	background = "#282d35"
	foreground = "#b9c0cb"
	faint      = "#8b93a1"
)

// palette has the colours by the codes of SGR.
var palette = map[int]string{
	30: "#6f7683", 31: "#e88388", 32: "#a8cc8c", 33: "#dbab79", 34: "#71bef2", 35: "#d290e4", 36: "#66c2cd", 37: foreground,
	90: "#6f7683", 91: "#e88388", 92: "#a8cc8c", 93: "#dbab79", 94: "#71bef2", 95: "#d290e4", 96: "#66c2cd", 97: "#ffffff",
}

// fonts names those of macOS, Windows and Linux. Any other will do.
const fonts = "ui-monospace,SFMono-Regular,Menlo,'Cascadia Mono',Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"

// stylesheet is for the elements that drawRow makes.
var stylesheet = fmt.Sprintf("svg{font:%dpx %s;color:%s}text{fill:currentColor}path{fill:none;stroke:currentColor;stroke-width:1.2}"+
	".bold{font-weight:700}.dim{color:%s}.full{fill:currentColor;stroke:none}", fontSize, fonts, foreground, faint)

// drawing has the options of a picture.
type drawing struct {
	still bool    // only the last frame, as tall as its text and without the frame of a window
	scale float64 // enlarges it; 0 is 1
}

// draw returns the frames of a recording as SVG. A program that does not know animations shows the last
// frame, and so does a browser whose user prefers less motion.
func (d drawing) draw(c cast, frames []frame) []byte {
	last := frames[len(frames)-1]
	top, rows, corner := titleBar, c.height, 6
	if d.still {
		frames, top, rows, corner = []frame{last}, margin, len(last.rows), 0
		for rows > 1 && len(last.rows[rows-1]) == 0 {
			rows--
		}
	}
	textWidth, textHeight := c.width*cellWidth, rows*rowHeight
	width, height, scale := textWidth+2*margin, top+textHeight+margin, cmp.Or(d.scale, 1)
	defined, film := drawFrames(frames, textWidth+gap)

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" viewBox="0 0 %d %d">`+"\n",
		float64(width)*scale, float64(height)*scale, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s%s%s</style>\n", escape(c.title), stylesheet, colors(frames), animate(frames, textWidth+gap))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="%d" fill="%s"/>`+"\n", width, height, corner, background)
	if !d.still {
		for i, color := range []string{"#ff5f58", "#ffbd2e", "#18c132"} {
			fmt.Fprintf(&b, `<circle cx="%d" cy="20" r="6" fill="%s"/>`+"\n", margin+6+20*i, color)
		}
	}
	fmt.Fprintf(&b, "<defs>\n%s</defs>\n", defined)
	fmt.Fprintf(&b, `<svg x="%d" y="%d" width="%d" height="%d" overflow="hidden">`+"\n", margin, top, textWidth, textHeight)
	fmt.Fprintf(&b, `<g class="film" transform="translate(%d)">`+"\n%s</g>\n</svg>\n</svg>\n", -(len(frames)-1)*(textWidth+gap), film)
	return b.Bytes()
}

// drawFrames returns the frames side by side, and the rows that they use: each different one once.
func drawFrames(frames []frame, distance int) (defined, film string) {
	var rows, all strings.Builder
	ids := map[string]int{"": 0}
	for i, f := range frames {
		fmt.Fprintf(&all, `<g transform="translate(%d)">`, i*distance)
		for y, l := range f.rows {
			row := drawRow(l)
			if _, is := ids[row]; !is {
				ids[row] = len(ids)
				fmt.Fprintf(&rows, `<g id="r%d">%s</g>`+"\n", ids[row], row)
			}
			if row != "" {
				fmt.Fprintf(&all, `<use href="#r%d" y="%d"/>`, ids[row], y*rowHeight)
			}
		}
		all.WriteString("</g>\n")
	}
	return rows.String(), all.String()
}

// animate returns the style that moves the frames, one after the other.
func animate(frames []frame, distance int) string {
	if len(frames) == 1 {
		return ""
	}
	begin := frames[0].at
	whole := frames[len(frames)-1].at - begin + pause
	var b strings.Builder
	fmt.Fprintf(&b, "@media(prefers-reduced-motion:no-preference){.film{animation:play %gs step-end infinite}}", whole.Seconds())
	b.WriteString("@keyframes play{")
	for i, f := range frames {
		percent := strconv.FormatFloat(100*(f.at-begin).Seconds()/whole.Seconds(), 'f', 3, 64)
		fmt.Fprintf(&b, "%s%%{transform:translate(%dpx)}", percent, -i*distance)
	}
	return b.String() + "}"
}

// colors returns the styles of the colours that occur.
func colors(frames []frame) string {
	used := map[int]bool{}
	for _, f := range frames {
		for _, l := range f.rows {
			for _, c := range l {
				used[c.color] = true
			}
		}
	}
	var b strings.Builder
	for code := range 98 {
		if used[code] && code != 0 {
			fmt.Fprintf(&b, ".c%d{color:%s}", code, palette[code])
		}
	}
	return b.String()
}
