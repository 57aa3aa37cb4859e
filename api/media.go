package api

import (
	"context"

	"weir/gateway/media"
	"weir/responses"
	"weir/tenants"
)

// loadFor loads the media of one request, as long as its caller waits.
func (s *Server) loadFor(ctx context.Context, p *tenants.Principal) func([]media.Source) ([]media.Loaded, error) {
	return func(sources []media.Source) ([]media.Loaded, error) {
		return s.media.Load(ctx, p.Tenant, sources)
	}
}

// loadItems loads the media of what is said in a conversation. Which model will
// hear it is not known: files become text.
func (s *Server) loadItems(x *exchange, items []responses.Item) error {
	return responses.LoadMedia(x.Request().Context(), s.media, x.principal.Tenant, "items", items, false)
}
