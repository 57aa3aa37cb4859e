package responses

import "context"

// Count asks the model's server how many tokens the request's whole context
// is, with what it goes on from. Nothing runs and nothing is kept.
func (s *Service) Count(ctx context.Context, from Caller, c *Create) (int64, error) {
	r, err := s.begin(ctx, from, c, NewID(), s.deps.Now())
	if err != nil {
		return 0, err
	}
	n, err := s.deps.Engine.CountTokens(ctx, r.call)
	return n, inputsFault(err)
}

// InputTokens renders a count.
func InputTokens(n int64) []byte {
	return append(appendInt([]byte(`{"object":"response.input_tokens","input_tokens":`), int(n)), '}')
}
