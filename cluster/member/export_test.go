package member

import "time"

// SetMaintainEvery changes how often members look at their files, until restore is called.
func SetMaintainEvery(every time.Duration) (restore func()) {
	before := maintainEvery
	maintainEvery = every
	return func() { maintainEvery = before }
}
