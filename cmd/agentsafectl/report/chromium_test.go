package report

import (
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the picture in testdata anew")

// chromium runs a headless browser and returns its output.
func chromium(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("probe chromium: not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append([]string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--force-color-profile=srgb",
		"--disable-background-networking", "--user-data-dir=" + t.TempDir(),
	}, args...)...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	return string(out)
}

// writePage writes a report's page, and one that shows it as wide as a phone: a window can't be that narrow.
func writePage(t *testing.T, r *Report) (page, phone string) {
	t.Helper()
	dir := t.TempDir()
	page, phone = filepath.Join(dir, "report.html"), filepath.Join(dir, "phone.html")
	f, err := os.Create(page)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := r.WriteHTML(f); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`<body style="margin:0"><iframe src="report.html" width="%d" height="%d" style="border:0"></iframe>`, phoneWidth, phoneHeight)
	if err := os.WriteFile(phone, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return page, phone
}

const phoneWidth, phoneHeight = 390, 1200

// TestChromium_Hostile: a browser runs nothing of what a task has written into the report.
func TestChromium_Hostile(t *testing.T) {
	page, _ := writePage(t, hostileReport())
	dom := chromium(t, "--dump-dom", "file://"+page)
	title := regexp.MustCompile(`(?s)<title>(.*?)</title>`).FindStringSubmatch(dom)
	if title == nil || title[1] == "owned" || !strings.Contains(title[1], "agentsafe report") {
		t.Errorf("title %q", title)
	}
	for _, element := range []string{"<script", "<img"} {
		if strings.Contains(dom, element) {
			t.Errorf("the page has an element %s", element)
		}
	}
}

// plainReport is one to look at.
func plainReport() *Report {
	r := hostileReport()
	r.Container.ID, r.Argv, r.Cwd, r.Log, r.Runtime = "4f1c2d", []string{"make", "test"}, "/job", "/var/lib/agentsafe/evidence/4f1c2d", "1.0"
	r.Container.Profile, r.Container.Engine, r.Container.Image, r.Container.PolicyHash = "test", "docker", "debian:12", "0123456789abcdef"
	r.Container.ImageDigest, r.Container.Owner, r.Container.Task, r.Container.TraceParent, r.Container.SpecHash = "", "ana", "mend the parser", "", "abc"
	r.End.Message, r.Execs[0].Argv, r.Execs[0].ID = "ran out of memory: the kernel has ended 3 of its processes", []string{"sh", "-c", "go vet ./..."}, "e1"
	r.Events = []Event{{r.Execs[2].End, "time-out", "e3 ran longer than it may", true}}
	return r
}

// TestChromium_Phone compares a picture of a report on a phone with the one that somebody has looked at: coarsely, so that
// another version of a font or the browser makes no difference, and a page that is cut off, empty or overlaps does.
func TestChromium_Phone(t *testing.T) {
	_, phone := writePage(t, plainReport())
	shot := filepath.Join(t.TempDir(), "phone.png")
	chromium(t, "--window-size=500,1200", "--screenshot="+shot, "file://"+phone)
	got := coarse(t, shot)
	golden := filepath.Join("testdata", "phone.png")
	if *update {
		writePNG(t, golden, got)
	}
	want := readPNG(t, golden)
	if got.Bounds() != want.Bounds() {
		t.Fatalf("a picture of %v, want %v", got.Bounds(), want.Bounds())
	}
	var sum float64
	off, cells := 0, 0
	for y := range got.Bounds().Dy() {
		for x := range got.Bounds().Dx() {
			d := math.Abs(luminance(got.At(x, y)) - luminance(want.At(x, y)))
			const much = 0.2
			if sum += d; d > much {
				off++
			}
			cells++
		}
	}
	const most, share = 0.04, 0.08
	if mean := sum / float64(cells); mean > most || float64(off) > share*float64(cells) {
		t.Errorf("the picture differs by %.3f in the mean, and much in %d of %d cells: look at it, then -update", mean, off, cells)
	}
}

// cell is how many pixels become one.
const cell = 10

// coarse is a picture in cells.
func coarse(t *testing.T, name string) image.Image {
	t.Helper()
	full := readPNG(t, name)
	out := image.NewGray(image.Rect(0, 0, phoneWidth/cell, phoneHeight/cell))
	for y := range out.Bounds().Dy() {
		for x := range out.Bounds().Dx() {
			var sum float64
			for dy := range cell {
				for dx := range cell {
					sum += luminance(full.At(x*cell+dx, y*cell+dy))
				}
			}
			out.SetGray(x, y, color.Gray{uint8(255 * sum / (cell * cell))})
		}
	}
	return out
}

func luminance(c color.Color) float64 {
	return float64(color.Gray16Model.Convert(c).(color.Gray16).Y) / math.MaxUint16
}

func readPNG(t *testing.T, name string) image.Image {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func writePNG(t *testing.T, name string, img image.Image) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := png.Encode(f, img); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
