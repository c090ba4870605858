package command

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version and commit are for releases, which set them with
// -ldflags "-X github.com/tenurelock/tenure/cmd/tenure/command.version=v1.2.3". Otherwise the
// toolchain says what was built.
var version, commit string

// programVersion returns the version, the commit, and a text that says whether files were changed
// since that.
func programVersion() (release, revision, modified string) {
	release, revision = version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		release = cmp.Or(release, info.Main.Version)
		for _, setting := range info.Settings {
			switch setting.Key {
			case "vcs.revision":
				revision = cmp.Or(revision, setting.Value)
			case "vcs.modified":
				if setting.Value == "true" && commit == "" {
					modified = ", modified"
				}
			}
		}
	}
	return cmp.Or(release, "(devel)"), revision, modified
}

// versionText is what --version prints after the name of the program.
func versionText() string {
	release, revision, modified := programVersion()
	return fmt.Sprintf("%s (commit %s%s, %s, %s/%s)", release, cmp.Or(revision, "unknown"), modified,
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
