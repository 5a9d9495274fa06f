package container

import "slices"

// undoStack is what has to be given back, last first, if a creation fails.
type undoStack struct{ steps []func() }

func (u *undoStack) push(f func()) { u.steps = append(u.steps, f) }

// run undoes everything; after keep there is nothing left to undo.
func (u *undoStack) run() {
	for _, v := range slices.Backward(u.steps) {
		v()
	}
	u.steps = nil
}

func (u *undoStack) keep() { u.steps = nil }
