package journal

import "os"

type control struct{}

func (*control) close() error { return nil }

func (f *File) listen() error {
	host, _ := os.Hostname()
	return writeHolder(f.dir, holder{PID: os.Getpid(), Host: host})
}
