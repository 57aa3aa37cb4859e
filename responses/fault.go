package responses

import (
	"errors"
	"strings"

	"weir/gateway"
)

// inputsFault is the error of an exchange in this API's words: what a Chat
// request calls messages came from the input and what it goes on from.
func inputsFault(err error) error {
	e, ok := errors.AsType[*gateway.Error](err)
	if !ok || !strings.HasPrefix(e.Param, "messages") {
		return err
	}
	ours := *e
	ours.Param = "input"
	return &ours
}
