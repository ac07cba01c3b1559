// The SBOM of an image, an SPDX 2.3 document: the programs and their Go modules according to
// their build information, the packages of the base according to its metadata, and every
// file with its hashes. The result depends on nothing else, least of all the clock.

package rootfs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/utils"
)

// Description holds what the SBOM of an image says about it. Tree is its whole content
// except the document itself.
type Description struct {
	Name     string // "device-plugin"
	Version  string // "v1.2.3"
	Revision string // the commit that the programs were built from
	Arch     string // "amd64"
	Tree     Tree
	At       time.Time // the image's creation time
}

const (
	source    = "https://github.com/gpuready/gpuready"
	unknown   = "NOASSERTION"
	document  = "DOCUMENT"
	container = "Image"
)

// SBOM returns the document, as JSON.
func SBOM(image Description) ([]byte, error) {
	d := &draft{
		Document: &spdx.Document{
			SPDXVersion:    spdx.Version,
			DataLicense:    spdx.DataLicense,
			SPDXIdentifier: document,
			DocumentName:   image.Name + " " + image.Version,
			CreationInfo: &spdx.CreationInfo{
				Creators: []common.Creator{{CreatorType: "Organization", Creator: "gpuready"}, {CreatorType: "Tool", Creator: "deployments/images/build"}},
				Created:  image.At.UTC().Format(time.RFC3339),
			},
		},
		packages: map[common.ElementID]bool{},
	}
	if err := d.image(image); err != nil {
		return nil, err
	}
	d.debian(image)
	for _, name := range image.Tree.Paths() {
		if o := image.Tree[name].Object; o != nil && o.Go != nil {
			d.program(image, name, o.Go)
		}
	}
	var out bytes.Buffer
	if err := json.Write(d.Document, &out, json.Indent("  "), json.EscapeHTML(false)); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

type draft struct {
	*spdx.Document
	packages map[common.ElementID]bool // packages already added
}

// add adds a package once, and its relationship to from.
func (d *draft) add(from common.ElementID, relation string, p *spdx.Package) {
	if !d.packages[p.PackageSPDXIdentifier] {
		d.packages[p.PackageSPDXIdentifier] = true
		p.PackageDownloadLocation = cmp.Or(p.PackageDownloadLocation, unknown)
		p.PackageLicenseConcluded = unknown
		p.PackageLicenseDeclared = cmp.Or(p.PackageLicenseDeclared, unknown)
		p.PackageCopyrightText = unknown
		d.Packages = append(d.Packages, p)
	}
	d.relate(from, relation, p.PackageSPDXIdentifier)
}

func (d *draft) relate(a common.ElementID, relation string, b common.ElementID) {
	d.Relationships = append(d.Relationships, &spdx.Relationship{
		RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: relation,
	})
}

// image describes the image itself and its files.
func (d *draft) image(image Description) error {
	all := sha256.New()
	for _, name := range image.Tree.Paths() {
		f := image.Tree[name]
		fmt.Fprintln(all, name, f.Mode, f.UID, f.GID, f.Link, f.SHA256)
		if !f.Mode.IsRegular() {
			continue
		}
		d.Files = append(d.Files, &spdx.File{
			FileName: "." + name, FileSPDXIdentifier: identifier("File", name),
			Checksums:        []common.Checksum{{Algorithm: common.SHA1, Value: f.SHA1}, {Algorithm: common.SHA256, Value: f.SHA256}},
			LicenseConcluded: unknown, FileCopyrightText: unknown,
		})
	}
	// Unique to the content, as SPDX requires, and the same for the same content.
	d.DocumentNamespace = fmt.Sprintf("%s/sbom/%s/%s/%s/%s", source, image.Name, image.Version, image.Arch, hex.EncodeToString(all.Sum(nil)))
	code, err := utils.GetVerificationCode(d.Files, "")
	if err != nil {
		return err
	}
	code.ExcludedFiles = []string{"." + SBOMPath(image.Name)}
	d.add(document, common.TypeRelationshipDescribe, &spdx.Package{
		PackageName: "gpuready/" + image.Name, PackageSPDXIdentifier: container, PackageVersion: image.Version,
		PackageSupplier: &common.Supplier{SupplierType: "Organization", Supplier: "gpuready"}, PackageHomePage: source,
		FilesAnalyzed: true, PackageVerificationCode: &code, PackageLicenseInfoFromFiles: []string{unknown},
		PackageLicenseDeclared: "Apache-2.0", PrimaryPackagePurpose: "CONTAINER",
		PackageLicenseComments: "of gpuready's own programs; the packages of the base say theirs in /usr/share/doc",
	})
	for _, f := range d.Files {
		d.relate(container, common.TypeRelationshipContains, f.FileSPDXIdentifier)
	}
	return nil
}

// SBOMPath returns the path of the document in the image.
func SBOMPath(name string) string { return "/usr/share/sbom/" + name + ".spdx.json" }

// debian describes the packages in the base's metadata.
func (d *draft) debian(image Description) {
	release := fields(image.Tree["/usr/lib/os-release"].Text, "=")
	distribution := strings.Trim(cmp.Or(release["ID"], "debian"), `"`)
	for _, name := range image.Tree.Paths() {
		if f := image.Tree[name]; path.Dir(name) == StatusFolder && f.Text != nil {
			control := fields(f.Text, ": ")
			p := &spdx.Package{
				PackageName: control["Package"], PackageSPDXIdentifier: identifier("Package-deb", control["Package"]),
				PackageVersion: control["Version"], PrimaryPackagePurpose: "LIBRARY", PackageHomePage: control["Homepage"],
				PackageSummary: control["Description"],
				PackageExternalReferences: purl(fmt.Sprintf("pkg:deb/%s/%s@%s?arch=%s&distro=%s-%s", distribution, control["Package"],
					strings.ReplaceAll(control["Version"], "+", "%2B"), control["Architecture"], distribution, strings.Trim(release["VERSION_ID"], `"`))),
			}
			if src, _, _ := strings.Cut(control["Source"], " "); src != "" {
				p.PackageSourceInfo = "built from the source package " + src
			}
			if who, _, ok := strings.Cut(control["Maintainer"], " <"); ok {
				p.PackageSupplier = &common.Supplier{SupplierType: "Organization", Supplier: who}
			}
			if at, ok := image.Tree.Resolve("/usr/share/doc/" + control["Package"] + "/copyright"); ok {
				p.PackageLicenseComments = "see " + at + " in the image"
			}
			d.add(container, common.TypeRelationshipContains, p)
		}
	}
}

// program describes a Go program and its modules.
func (d *draft) program(image Description, name string, info *debug.BuildInfo) {
	id := identifier("Program", name)
	version, home := image.Revision, source
	if !strings.HasPrefix(info.Path, strings.TrimPrefix(source, "https://")) { // another project's
		version, home = info.Main.Version, "https://"+info.Main.Path
	}
	d.add(container, common.TypeRelationshipContains, &spdx.Package{
		PackageName: path.Base(name), PackageSPDXIdentifier: id, PackageVersion: version, PackageFileName: "." + name,
		PackageSourceInfo: fmt.Sprintf("%s, built by %s for %s", info.Path, info.GoVersion, image.Arch),
		PackageHomePage:   home, PackageLicenseDeclared: "Apache-2.0", PrimaryPackagePurpose: "APPLICATION",
	})
	d.relate(id, common.TypeRelationshipContains, identifier("File", name))
	modules := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	modules = append(modules, info.Deps...)
	slices.SortStableFunc(modules, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	for _, m := range modules {
		if m.Replace != nil {
			m = m.Replace
		}
		p := &spdx.Package{
			PackageName: m.Path, PackageSPDXIdentifier: identifier("Package-go", m.Path+"@"+m.Version), PackageVersion: m.Version,
			PrimaryPackagePurpose: "LIBRARY", PackageExternalReferences: purl("pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")),
		}
		if m.Sum != "" {
			p.PackageComment = "go.sum " + m.Sum
		}
		d.add(id, common.TypeRelationshipDependsOn, p)
	}
}

func purl(locator string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: locator}}
}

// identifier returns an SPDX identifier, which has letters, digits, "." and "-" only.
// Different names give different identifiers.
func identifier(kind, name string) common.ElementID {
	var id strings.Builder
	id.WriteString(kind + "-")
	for _, r := range strings.TrimPrefix(name, "/") {
		switch {
		case r == '/':
			id.WriteString("-.")
		case r == '-':
			id.WriteString("--")
		case r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z':
			id.WriteRune(r)
		default:
			fmt.Fprintf(&id, "-%x.", r)
		}
	}
	return common.ElementID(id.String())
}

// fields reads `key<separator>value` lines; continuation lines are left out.
func fields(text []byte, separator string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), separator); ok && !strings.HasPrefix(key, " ") {
			all[key] = value
		}
	}
	return all
}
